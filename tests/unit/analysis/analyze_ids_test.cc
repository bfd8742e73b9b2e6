// analyze() by the rules of our own ids, over jobs whose lanes are whole, uneven, and damaged.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "analysis/analyze.h"
#include "analysis/lost_ops.h"
#include "analysis/statistics.h"
#include "analysis/waits_for_missing.h"
#include "id_rows.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::ColumnStore;
using testing::IdRows;
using testing::JobSpec;
using testing::Row;

Result<Analysis> analyze_ids(const std::vector<Row>& rows, const JobLayout& layout, double clock_bound_ns = 0) {
  const ColumnStore store(rows);
  return analyze(store.view(), layout, {}, {Rules::kIds, clock_bound_ns});
}

Analysis ids_of(const std::vector<Row>& rows, const JobLayout& layout) {
  auto result = analyze_ids(rows, layout);
  EXPECT_TRUE(result) << result.error().message;
  return result ? std::move(*result) : Analysis{};
}

// A job by the rules of ids, taken apart as analyze() does it. Not movable: `what_if` borrows the rest.
class IdWhatIf {
 public:
  IdWhatIf(const std::vector<Row>& rows, const JobLayout& layout)
      : lanes(build(rows, layout)),
        graph(std::move(build_graph(lanes, 0)).value()),
        timing(measure(lanes.table, graph)),
        what_if(graph, timing, static_cast<std::size_t>(layout.dp_size), static_cast<std::size_t>(layout.pp_size)) {}
  IdWhatIf(const IdWhatIf&) = delete;
  IdWhatIf& operator=(const IdWhatIf&) = delete;

  IdLanes lanes;
  OpGraph graph;
  OpTiming timing;
  WhatIf what_if;

 private:
  static OpTiming measure(LaneTable& table, const OpGraph& graph) {
    put_in_lost_ops(table, graph);
    OpTiming timing = measure_ops(table, graph, {0, false, true});
    mark_waits_for_missing(table, graph, timing);
    return timing;
  }
  static IdLanes build(const std::vector<Row>& rows, const JobLayout& layout) {
    const ColumnStore store(rows);
    return std::move(build_id_lanes(store.view(), layout)).value();
  }
};

JobSpec uneven_lanes() {
  JobSpec spec = testing::uneven_job(3, 3);
  spec.steps = 4;
  spec.uneven_microbatches = [](int dp_rank, std::int64_t step) { return static_cast<int>(2 + (dp_rank + step) % 3); };
  return spec;
}

template <typename Predicate>
std::vector<Row> without(std::vector<Row> rows, Predicate predicate) {
  std::erase_if(rows, predicate);
  return rows;
}

TEST(AnalyzeIds, AWholeJobHasTheNumbersOfTheReferenceRules) {
  for (testing::DpMode mode : {testing::DpMode::kNone, testing::DpMode::kPlain, testing::DpMode::kOverlapped}) {
    JobSpec spec = testing::uneven_job(3, 3);
    spec.dp_mode = mode;
    const std::vector<Row> rows = testing::make_job(spec);
    const ColumnStore store(rows);
    auto reference = analyze(store.view(), spec.layout());
    const Analysis result = ids_of(rows, spec.layout());
    ASSERT_TRUE(reference);
    EXPECT_DOUBLE_EQ(result.slowdown, reference->slowdown);
    EXPECT_DOUBLE_EQ(result.launch_slowdown, reference->launch_slowdown);
    for (std::size_t worker = 0; worker < 9; ++worker) {
      EXPECT_DOUBLE_EQ(result.worker_slowdowns[worker], reference->worker_slowdowns[worker]);
    }
    EXPECT_EQ(result.absent_op_count, 0);
    EXPECT_TRUE(result.left_out_steps.empty());
  }
}

TEST(AnalyzeIds, AnUnchangedReplayGivesTheRecordedStepsWhateverIsMissing) {
  std::mt19937 random(5);
  for (int round = 0; round < 60; ++round) {
    const JobSpec spec = round % 2 == 0 ? uneven_lanes() : testing::uneven_job();
    const unsigned keep = round % 3 == 0 ? 1000 : 30;
    const std::vector<Row> rows = without(
        testing::make_job(spec), [&](const Row& row) { return row.kind != Kind::kOptimizer && random() % keep == 0; });
    const IdWhatIf job(rows, spec.layout());
    EXPECT_TRUE(job.lanes.left_out_steps.empty());
    ASSERT_EQ(job.what_if.simulator().replay(job.what_if.recorded()).last, job.lanes.table.step_times_ns())
        << "round " << round;
  }
}

TEST(AnalyzeIds, AnUnchangedReplayGivesTheRecordedStepsWhateverTheClocks) {
  std::mt19937 random(6);
  std::vector<Row> rows = testing::make_job(uneven_lanes());
  for (Row& row : rows) row.start_ns += row.stage * 30'000 + static_cast<std::int64_t>(random() % 20'000);
  const IdWhatIf job(rows, uneven_lanes().layout());
  EXPECT_EQ(job.what_if.simulator().replay(job.what_if.recorded()).last, job.lanes.table.step_times_ns());
  EXPECT_GT(job.timing.early_start_count, 0);
}

TEST(AnalyzeIds, ClocksThatDisagreeAreCountedBeyondTheirBoundAndNotHidden) {
  const JobSpec spec = testing::uneven_job(1, 2);
  std::vector<Row> rows = testing::make_job(spec);
  for (Row& row : rows) row.start_ns -= row.stage == 1 ? 100'000'000 : 0;
  auto within = analyze_ids(rows, spec.layout(), 100'000'000);
  auto beyond = analyze_ids(rows, spec.layout(), 50'000'000);
  ASSERT_TRUE(within && beyond);
  EXPECT_EQ(within->fidelity.negative_transfer_count + within->fidelity.early_start_count, 0);
  EXPECT_GT(beyond->fidelity.negative_transfer_count, 0);
  EXPECT_GT(beyond->fidelity.worst_negative_transfer_ns, 50e6);
  EXPECT_EQ(beyond->fidelity.clock_tolerance_ns, 50e6);
}

TEST(AnalyzeIds, UnevenLanesOfEqualOpsAreIdeal) {
  JobSpec spec;
  spec.steps = 4;
  spec.dp_mode = testing::DpMode::kNone;
  spec.duration = [](const Row&) { return 1 << 20; };
  spec.uneven_microbatches = [](int, std::int64_t step) { return static_cast<int>(1 + step % 3); };
  const Analysis result = ids_of(testing::make_job(spec), spec.layout());
  EXPECT_EQ(result.slowdown, 1);
  EXPECT_EQ(result.launch_slowdown, 1);
  EXPECT_GT(result.absent_op_count, 0);
  for (std::size_t step = 0; step < 4; ++step) {
    EXPECT_EQ(result.ideal_step_ns[step], result.base_step_ns[step]);
    EXPECT_EQ(result.nodelay_step_ns[step], result.base_step_ns[step]);
  }
}

// One replay for each worker, in which only it runs as recorded.
TEST(AnalyzeIds, TheSlowdownOfEachWorkerIsThatOfBruteForce) {
  std::mt19937 random(7);
  for (int round = 0; round < 8; ++round) {
    const JobSpec spec = uneven_lanes();
    const std::vector<Row> rows = without(testing::make_job(spec), [&](const Row& row) {
      const bool is_of_missing_worker = round % 2 == 0 && row.dp_rank == 2 && row.stage == 1;
      return is_of_missing_worker || (row.kind != Kind::kOptimizer && random() % 50 == 0);
    });
    const Analysis result = ids_of(rows, spec.layout());
    const IdWhatIf job(rows, spec.layout());
    const std::vector<double> ideal = job.what_if.simulator().replay(job.what_if.ideal()).optimizer;
    for (std::size_t dp_rank = 0; dp_rank < 3; ++dp_rank) {
      for (std::size_t stage = 0; stage < 3; ++stage) {
        WorkerSet worker(3, 3);
        worker.add(dp_rank, stage);
        const StepEnds alone = job.what_if.simulator().replay(job.what_if.ideal_except(worker));
        for (std::size_t step = 0; step < ideal.size(); ++step) {
          ASSERT_DOUBLE_EQ(result.worker_slowdowns_by_step[dp_rank * 3 + stage][step],
                           alone.optimizer[step] / ideal[step]);
        }
      }
    }
  }
}

TEST(AnalyzeIds, FindsTheSlowWorkerAmongUnevenLanes) {
  const Analysis result = ids_of(testing::make_job(uneven_lanes()), uneven_lanes().layout());
  ASSERT_EQ(result.causes.front().cause, "worker");
  EXPECT_EQ(result.causes.front().workers, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}}));
  EXPECT_GT(result.slowest_workers_exact.ratio, 0.5);
}

TEST(AnalyzeIds, WhatAMemberAddsIsTheMembersNotTheWorkers) {
  const std::vector<Row> rows = testing::make_job(uneven_lanes());
  const ColumnStore store(rows);
  OpColumns columns = store.view();
  std::vector<std::int64_t> excess;
  for (const Row& row : rows) {
    const bool is_of_slow = row.dp_rank == 1 && row.stage == 0;
    const bool is_compute = row.kind == Kind::kForwardCompute || row.kind == Kind::kBackwardCompute;
    // More than half of all that the worker, which is twice as slow, takes beyond its peers; no op has more than all.
    excess.push_back(is_of_slow && is_compute ? row.duration_ns / 2 : 0);
  }
  columns.member_excess_ns = excess;
  auto result = analyze(columns, uneven_lanes().layout(), {}, {Rules::kIds, 0});
  ASSERT_TRUE(result);
  const Analysis without = ids_of(rows, uneven_lanes().layout());
  const auto gain_of = [](const Analysis& analysis, const std::string& cause) {
    for (const CauseRemoval& removal : analysis.causes) {
      if (removal.cause == cause) return mean(analysis.base_step_ns) - mean(removal.step_ns);
    }
    return 0.0;
  };
  ASSERT_EQ(result->causes.front().cause, "tensor_parallel_member");
  EXPECT_EQ(std::pair(result->causes.front().dp_rank, result->causes.front().stage), std::pair(1, 0));
  EXPECT_EQ(gain_of(without, "tensor_parallel_member"), 0);
  EXPECT_GT(gain_of(without, "worker"), 0);
  EXPECT_GT(gain_of(*result, "tensor_parallel_member"), 0.9 * gain_of(without, "worker"));
  EXPECT_LT(gain_of(*result, "worker"), 0.1 * gain_of(without, "worker"));
  excess[3] = -1;
  EXPECT_EQ(analyze(columns, uneven_lanes().layout(), {}, {Rules::kIds, 0}).error().message,
            "member_excess -1 ns in row 3 is negative");
}

TEST(AnalyzeIds, AMissingWorkerIsNeitherSlowNorFixedNorCounted) {
  const JobSpec spec = testing::uneven_job(2, 2);
  const std::vector<Row> rows =
      without(testing::make_job(spec), [](const Row& row) { return row.dp_rank == 0 && row.stage == 1; });
  const Analysis result = ids_of(rows, spec.layout());
  EXPECT_EQ(result.worker_ranks[1], -1);
  EXPECT_TRUE(std::isnan(result.forward_medians_ns[1]));
  EXPECT_DOUBLE_EQ(result.worker_slowdowns[1], 1);
  ASSERT_EQ(result.causes.front().cause, "worker");
  EXPECT_EQ(result.causes.front().workers, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}}));
  EXPECT_EQ(result.slowest_workers_exact.workers, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}}));
  EXPECT_GT(result.absent_op_count, 0);
  EXPECT_EQ(result.fidelity.early_start_count, 0);
}

TEST(AnalyzeIds, ALostSendLeavesTheTransferOfItsReceiveAsItWas) {
  // Both stages without noise: each recv has waited for the compute before its send.
  JobSpec spec;
  spec.dp_size = 1;
  spec.dp_mode = testing::DpMode::kNone;
  const std::vector<Row> rows = testing::make_job(spec);
  const std::vector<Row> damaged = without(rows, [](const Row& row) {
    return row.kind == Kind::kForwardSend && row.microbatch == 2 && row.step == testing::kFirstStep;
  });
  const Analysis whole = ids_of(rows, spec.layout());
  const Analysis result = ids_of(damaged, spec.layout());
  EXPECT_EQ(result.absent_op_count, 1);
  EXPECT_EQ(result.nodelay_step_ns, whole.nodelay_step_ns);
  EXPECT_NEAR(result.slowdown, whole.slowdown, 1e-3);
  EXPECT_EQ(result.fidelity.early_start_count, 0);
}

TEST(AnalyzeIds, StepsThatContradictAreReturnedNotAnalysed) {
  JobSpec spec;
  spec.steps = 5;
  std::vector<Row> rows = testing::make_job(spec);
  for (Row& row : rows) {
    const bool is_last_backward = row.kind == Kind::kBackwardCompute && row.microbatch == 3;
    if (is_last_backward && row.stage == 0 && row.step == testing::kFirstStep + 2) row.start_ns -= 20'000'000;
  }
  const Analysis result = ids_of(rows, spec.layout());
  ASSERT_EQ(result.left_out_steps.size(), 1u);
  EXPECT_EQ(result.left_out_steps[0].step, testing::kFirstStep + 2);
  EXPECT_EQ(result.steps.size(), 4u);
  EXPECT_EQ(std::count(result.steps.begin(), result.steps.end(), testing::kFirstStep + 2), 0);
}

TEST(AnalyzeIds, CommunicationNobodyWaitedForIsInNoMedian) {
  const JobSpec spec = testing::uneven_job(2, 2);
  std::vector<Row> rows = testing::make_job(spec);
  // Sends return at once.
  std::vector<std::uint8_t> is_waited;
  for (Row& row : rows) {
    const bool is_send = row.kind == Kind::kForwardSend || row.kind == Kind::kBackwardSend;
    if (is_send) row.duration_ns = 1;
    is_waited.push_back(is_send ? 0 : 1);
  }
  const ColumnStore store(rows);
  OpColumns columns = store.view();
  auto believed = analyze(columns, spec.layout(), {}, {Rules::kIds, 0});
  columns.is_waited = is_waited;
  auto result = analyze(columns, spec.layout(), {}, {Rules::kIds, 0});
  ASSERT_TRUE(believed && result);
  EXPECT_GT(believed->fidelity.negative_transfer_count, 0);
  EXPECT_EQ(result->fidelity.negative_transfer_count, 0);
  EXPECT_EQ(result->base_step_ns, believed->base_step_ns);
}

TEST(AnalyzeIds, AStepTakesWhatItTakesOneWorkerWhereStagesOverlapTheirSteps) {
  // The last stage was done with the step before, and waits for this one's first microbatch since 20 us.
  IdRows made;
  const testing::At first{0, 0, 0}, last{0, 1, 0};
  made.compute(first, Kind::kForwardCompute, 0, 20, 30);
  made.add(first, Kind::kForwardSend, 30, 32, 0, 0, 1);
  made.add(last, Kind::kForwardRecv, 0, 32, 0, 0, 1);
  made.compute(last, Kind::kForwardCompute, 0, 32, 42);
  made.compute(last, Kind::kBackwardCompute, 0, 42, 62);
  made.add(last, Kind::kBackwardSend, 62, 64, 0, 0, 2);
  made.add(first, Kind::kBackwardRecv, 32, 64, 0, 0, 2);
  made.compute(first, Kind::kBackwardCompute, 0, 64, 84);
  const ColumnStore store(made.rows);
  OpColumns columns = store.view();
  auto plain = analyze(columns, testing::layout_of(1, 2), {}, {Rules::kIds, 0});
  std::vector<std::int64_t> step_start_ns;
  for (const Row& row : made.rows) step_start_ns.push_back(row.stage == 0 ? 20'000 : 0);
  columns.step_start_ns = step_start_ns;
  auto result = analyze(columns, testing::layout_of(1, 2), {}, {Rules::kIds, 0});
  ASSERT_TRUE(plain && result);
  EXPECT_EQ(plain->base_step_ns, std::vector<double>{84'000});
  EXPECT_EQ(result->base_step_ns, std::vector<double>{64'000});
  EXPECT_EQ(result->nodelay_step_ns, std::vector<double>{64'000});
  EXPECT_EQ(result->launch_slowdown, 1);
  EXPECT_EQ(result->fidelity.negative_transfer_count, 0);
}

TEST(AnalyzeIds, CollectionsAndLoadingVanishWhenTheyAreRemoved) {
  IdRows made;
  for (std::int64_t step : {0, 1, 2, 3}) {
    const std::int64_t gc = step == 2 ? 400 : 0;
    made.add({0, 0, step}, Kind::kDataLoading, 0, 300);
    made.compute({0, 0, step}, Kind::kForwardCompute, 0, 300, 1300);
    if (gc > 0) made.add({0, 0, step}, Kind::kGc, 1300, 1300 + gc);
    made.compute({0, 0, step}, Kind::kBackwardCompute, 0, 1300 + gc, 3300 + gc);
    made.add({0, 0, step}, Kind::kOptimizer, 3300 + gc, 3400 + gc);
  }
  const Analysis result = ids_of(made.rows, testing::layout_of(1, 1));
  auto removed = [&](const std::string& name) {
    const auto found = std::find_if(result.causes.begin(), result.causes.end(),
                                    [&](const CauseRemoval& removal) { return removal.cause == name; });
    return found == result.causes.end() ? std::vector<double>{} : found->step_ns;
  };
  EXPECT_EQ(removed("gc"), (std::vector<double>{3'400'000, 3'400'000, 3'400'000, 3'400'000}));
  EXPECT_EQ(removed("data_loading"), (std::vector<double>{3'100'000, 3'100'000, 3'500'000, 3'100'000}));
}

TEST(AnalyzeIds, RowOrderDoesNotMatter) {
  std::vector<Row> rows = testing::make_job(uneven_lanes());
  const Analysis expected = ids_of(rows, uneven_lanes().layout());
  std::mt19937 random(8);
  std::shuffle(rows.begin(), rows.end(), random);
  const Analysis result = ids_of(rows, uneven_lanes().layout());
  EXPECT_DOUBLE_EQ(result.slowdown, expected.slowdown);
  EXPECT_EQ(result.nodelay_step_ns, expected.nodelay_step_ns);
  EXPECT_EQ(result.absent_op_count, expected.absent_op_count);
}

TEST(AnalyzeIds, AJobKTimesAsSlowHasTheSameRatios) {
  JobSpec spec = uneven_lanes();
  const Analysis once = ids_of(testing::make_job(spec), spec.layout());
  const auto duration = spec.duration;
  const auto delay = spec.launch_delay;
  spec.duration = [&](const Row& row) { return 4 * duration(row); };
  spec.launch_delay = [&](const Row& row) { return 4 * delay(row); };
  const Analysis scaled = ids_of(testing::make_job(spec), spec.layout());
  EXPECT_DOUBLE_EQ(scaled.slowdown, once.slowdown);
  EXPECT_DOUBLE_EQ(scaled.launch_slowdown, once.launch_slowdown);
  EXPECT_DOUBLE_EQ(scaled.slowest_workers.ratio, once.slowest_workers.ratio);
}

TEST(AnalyzeIds, AShorterOpNeverLengthensTheJob) {
  std::mt19937 random(9);
  const IdWhatIf job(testing::make_job(uneven_lanes()), uneven_lanes().layout());
  const std::vector<double> before = job.what_if.simulator().replay(job.what_if.nodelay()).last;
  for (int round = 0; round < 50; ++round) {
    Scenario scenario = job.what_if.nodelay();
    scenario.durations[random() % scenario.durations.size()] = {nullptr, 0, nullptr};
    const std::vector<double> after = job.what_if.simulator().replay(scenario).last;
    for (std::size_t step = 0; step < before.size(); ++step) ASSERT_LE(after[step], before[step]);
  }
}

TEST(AnalyzeIds, ErrorsOfEveryPartSurface) {
  IdRows spans;
  spans.add({}, Kind::kStep, 0, 10);
  auto nothing = analyze_ids(spans.rows, testing::layout_of(1, 1));
  ASSERT_FALSE(nothing);
  EXPECT_NE(nothing.error().message.find("no row is an op"), std::string::npos);
  IdRows ring;
  for (int stage : {0, 1}) {
    ring.add({0, stage, 0}, Kind::kForwardRecv, 0, 10, 0, 0, 1 + stage);
    ring.compute({0, stage, 0}, Kind::kForwardCompute, 0, 10, 20);
    ring.add({0, stage, 0}, Kind::kForwardSend, 20, 30, 0, 0, 2 - stage);
  }
  auto circle = analyze_ids(ring.rows, testing::layout_of(1, 2));
  ASSERT_FALSE(circle);
  EXPECT_NE(circle.error().message.find("in a circle"), std::string::npos);
}

}  // namespace
}  // namespace smon_rt::analysis
