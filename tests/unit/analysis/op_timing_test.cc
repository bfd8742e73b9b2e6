#include "analysis/op_timing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/reference_graph.h"
#include "job_builder.h"

namespace smon_rt::analysis {
namespace {

using testing::ColumnStore;
using testing::JobSpec;
using testing::Row;

constexpr std::int64_t kUs = 1000;

/// Ops of one stage by kind, numbered in the order of `kinds`; times[lane][op] = {start, end} in microseconds.
struct HandMade {
  using Times = std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>;

  HandMade(std::vector<Kind> kinds, int dp_size, const Times& times) {
    std::vector<Row> rows;
    for (std::size_t lane = 0; lane < times.size(); ++lane) {
      for (std::size_t op = 0; op < kinds.size(); ++op) {
        Row row{kinds[op]};
        row.dp_rank = row.rank = static_cast<std::int32_t>(lane) % dp_size;
        row.step = static_cast<std::int64_t>(lane) / dp_size;
        row.seq_id = static_cast<std::int32_t>(op);
        row.start_ns = times[lane][op].first * kUs;
        row.duration_ns = times[lane][op].second * kUs - row.start_ns;
        rows.push_back(row);
      }
    }
    const ColumnStore store(rows);
    JobLayout layout;
    layout.dp_size = dp_size;
    table = std::move(LaneTable::build(store.view(), layout).value());
    for (const RecordedOp& recorded : table.template_ops()) builder.add_op(recorded.op);
  }

  // To be called once, after edges and groups were added to `builder`.
  OpTiming measure() {
    graph = std::move(std::move(builder).build().value());
    return measure_ops(table, graph);
  }

  LaneTable table;
  OpGraphBuilder builder;
  OpGraph graph;
};

std::vector<double> in_us(const double* row, std::size_t lanes) {
  std::vector<double> values(row, row + lanes);
  for (double& value : values) value /= kUs;
  return values;
}

TEST(OpTiming, AnOpInNoGroupLastsFromItsStartToItsEnd) {
  HandMade job({Kind::kForwardCompute, Kind::kOptimizer}, 1, {{{0, 10}, {12, 15}}, {{0, 7}, {7, 9}}});
  const OpTiming timing = job.measure();
  EXPECT_EQ(timing.lane_count, 2u);
  EXPECT_EQ(in_us(timing.durations(0), 2), (std::vector<double>{10, 7}));
  EXPECT_EQ(in_us(timing.durations(1), 2), (std::vector<double>{3, 2}));
}

TEST(OpTiming, ATransferCountsFromTheLastStartOfItsGroup) {
  HandMade job({Kind::kForwardSend, Kind::kForwardRecv}, 1, {{{20, 35}, {0, 33}}});
  job.builder.add_group({0, 1}, false);
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.durations(0), 1), std::vector<double>{15});
  EXPECT_EQ(in_us(timing.durations(1), 1), std::vector<double>{13});
}

TEST(OpTiming, AGroupThatSpansDpCountsFromTheLastStartInItsStep) {
  // Two dp ranks, two steps.
  HandMade job({Kind::kParamsAllGather}, 2, {{{0, 30}}, {{10, 31}}, {{5, 40}}, {{0, 42}}});
  job.builder.add_group({0}, true);
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.durations(0), 4), (std::vector<double>{20, 21, 35, 37}));
}

TEST(OpTiming, AGroupWithinItsLaneIgnoresOtherDpRanks) {
  HandMade job({Kind::kForwardSend}, 2, {{{0, 30}}, {{10, 31}}});
  job.builder.add_group({0}, false);
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.durations(0), 2), (std::vector<double>{30, 21}));
}

TEST(OpTiming, ALaunchDelayCountsFromTheLastEndOfWhatTheOpWaitsFor) {
  HandMade job({Kind::kForwardCompute, Kind::kForwardRecv, Kind::kBackwardCompute}, 1, {{{0, 10}, {0, 14}, {20, 30}}});
  job.builder.add_dependency(2, 0);
  job.builder.add_dependency(2, 1);
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.launch_delays(2), 1), std::vector<double>{6});
}

TEST(OpTiming, AnOpThatWaitsForNothingCountsFromTheStartOfTheStep) {
  HandMade job({Kind::kForwardCompute, Kind::kGc}, 2, {{{5, 10}, {9, 12}}, {{3, 10}, {3, 12}}});
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.launch_delays(0), 2), (std::vector<double>{2, 0})) << "the step starts at 3";
  EXPECT_EQ(in_us(timing.launch_delays(1), 2), (std::vector<double>{6, 0}));
}

TEST(OpTiming, ADelayOfMinusTenMillisecondsOrLessCountsAsNone) {
  HandMade job({Kind::kForwardCompute, Kind::kOptimizer}, 1,
               {{{0, 20'000}, {10'000, 20'100}}, {{0, 20'000}, {10'001, 20'100}}, {{0, 20'000}, {2'000, 20'100}}});
  job.builder.add_dependency(1, 0);
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.launch_delays(1), 3), (std::vector<double>{0, -9'999, 0}));
}

TEST(OpTiming, ATransferOfMinusTenMillisecondsOrLessCountsAsNone) {
  const HandMade::Times times = {{{0, 5'000}, {15'000, 16'000}}, {{0, 5'001}, {15'000, 16'000}}};
  HandMade job({Kind::kForwardSend, Kind::kForwardRecv}, 1, times);
  job.builder.add_group({0, 1}, false);
  const OpTiming timing = job.measure();
  EXPECT_EQ(in_us(timing.durations(0), 2), (std::vector<double>{0, -9'999}));
}

TEST(OpTiming, StartsBeforeTheDependencyEndsAreCountedBeyondTheClockTolerance) {
  HandMade job({Kind::kForwardCompute, Kind::kOptimizer}, 1,
               {{{0, 1'000}, {950, 1'100}}, {{0, 1'000}, {949, 1'100}}, {{0, 20'000}, {8'000, 21'000}}});
  job.builder.add_dependency(1, 0);
  const OpTiming timing = job.measure();
  EXPECT_EQ(timing.early_start_count, 2);
  EXPECT_EQ(timing.worst_early_start_ns, 12e6) << "also of what is too early to be believed";
  EXPECT_EQ(in_us(timing.launch_delays(1), 3)[0], -50) << "small negative delays are kept";
}

TEST(OpTiming, ComputationTakesTheMeanAndCommunicationTheMedian) {
  const Kind means[] = {Kind::kForwardCompute, Kind::kBackwardCompute, Kind::kOptimizer, Kind::kGc};
  const Kind medians[] = {Kind::kForwardSend,
                          Kind::kForwardRecv,
                          Kind::kBackwardSend,
                          Kind::kBackwardRecv,
                          Kind::kParamsAllGather,
                          Kind::kGradsReduceScatter,
                          Kind::kSeparateGradsAllReduce,
                          Kind::kLayernormGradsAllReduce,
                          Kind::kEmbeddingGradsAllReduce,
                          Kind::kOptimizerClipMainGrad};
  const auto ideal_of = [](Kind kind) {
    // Two ops in two lanes: 1, 2, 4, 13 µs.
    HandMade job({kind, kind}, 2, {{{0, 1}, {0, 2}}, {{0, 4}, {0, 13}}});
    const OpTiming timing = job.measure();
    return ideal_durations(timing, job.graph)[static_cast<std::size_t>(kind)] / kUs;
  };
  for (Kind kind : means) EXPECT_EQ(ideal_of(kind), 5) << kind_name(kind);
  for (Kind kind : medians) EXPECT_EQ(ideal_of(kind), 3) << kind_name(kind);
}

TEST(OpTiming, KindsAreNotMixedAndThoseThatDoNotOccurAreZero) {
  HandMade job({Kind::kForwardCompute, Kind::kBackwardCompute}, 1, {{{0, 10}, {0, 30}}});
  const OpTiming timing = job.measure();
  const auto ideal = ideal_durations(timing, job.graph);
  EXPECT_EQ(ideal[static_cast<std::size_t>(Kind::kForwardCompute)], 10 * kUs);
  EXPECT_EQ(ideal[static_cast<std::size_t>(Kind::kBackwardCompute)], 30 * kUs);
  EXPECT_EQ(ideal[static_cast<std::size_t>(Kind::kGc)], 0);
}

// What the job was made of comes back, op by op.
void expect_taken_apart(const JobSpec& spec) {
  const std::vector<Row> rows = testing::make_job(spec);
  const ColumnStore store(rows);
  auto table = LaneTable::build(store.view(), spec.layout());
  ASSERT_TRUE(table) << table.error().message;
  auto graph = build_reference_graph(table->template_ops(), spec.pp_size);
  ASSERT_TRUE(graph) << graph.error().message;
  const OpTiming timing = measure_ops(*table, *graph);
  EXPECT_EQ(timing.early_start_count, 0);
  std::int64_t earliest_start_ns = rows.front().start_ns;
  for (const Row& row : rows) earliest_start_ns = std::min(earliest_start_ns, row.start_ns);
  for (const Row& row : rows) {
    OpIndex op = 0;
    while (graph->op(op).kind != row.kind || graph->op(op).stage != row.stage || graph->op(op).seq_id != row.seq_id) {
      ++op;
    }
    const std::size_t lane = static_cast<std::size_t>((row.step - testing::kFirstStep) * spec.dp_size + row.dp_rank);
    const std::string name = describe(graph->op(op)) + ", lane " + std::to_string(lane);
    ASSERT_EQ(timing.durations(op)[lane], static_cast<double>(spec.duration(row))) << name;
    // Without dependencies a delay counts from the first start of the step, which may itself be delayed.
    if (!graph->dependencies(op).empty()) {
      ASSERT_EQ(timing.launch_delays(op)[lane], static_cast<double>(spec.launch_delay(row))) << name;
    }
  }
}

TEST(OpTiming, AJobIsTakenApartIntoTheDurationsAndDelaysItWasMadeOf) {
  for (testing::DpMode mode : {testing::DpMode::kNone, testing::DpMode::kPlain, testing::DpMode::kOverlapped}) {
    for (int pp_size : {1, 2, 4}) {
      JobSpec spec;
      spec.dp_size = mode == testing::DpMode::kNone ? 1 : 3;
      spec.pp_size = pp_size;
      spec.microbatches = 5;
      spec.dp_mode = mode;
      spec.gc = pp_size == 2;
      expect_taken_apart(spec);
      spec.launch_delay = [](const Row& row) { return 1'000 + testing::jitter(row, 40'000); };
      expect_taken_apart(spec);
    }
  }
}

}  // namespace
}  // namespace smon_rt::analysis
