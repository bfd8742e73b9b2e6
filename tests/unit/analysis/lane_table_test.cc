#include "analysis/lane_table.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "job_builder.h"

namespace smon_rt::analysis {
namespace {

using testing::ColumnStore;
using testing::JobSpec;
using testing::Row;

Result<LaneTable> build(const std::vector<Row>& rows, const JobLayout& layout) {
  const ColumnStore store(rows);
  auto valid = validate_columns(store.view(), layout);
  EXPECT_TRUE(valid) << valid.error().message;
  return LaneTable::build(store.view(), layout);
}

std::string error_of(const std::vector<Row>& rows, const JobLayout& layout) {
  auto table = build(rows, layout);
  return table ? "no error" : table.error().message;
}

constexpr JobLayout dp_pp(std::int32_t dp_size, std::int32_t pp_size) {
  return {dp_size, pp_size, 1, 1, 1, 1};
}

// A forward of dp rank `dp` in step `step`.
Row forward(int dp, std::int64_t step, int seq_id, std::int64_t start_ns, std::int64_t duration_ns) {
  Row row{Kind::kForwardCompute, dp, 0, dp, step, seq_id};
  row.start_ns = start_ns;
  row.duration_ns = duration_ns;
  return row;
}

// Two dp ranks, two steps, two ops each.
std::vector<Row> small_job() {
  std::vector<Row> rows;
  for (std::int64_t step : {4, 9}) {
    for (int dp : {0, 1}) {
      for (int seq_id : {0, 1}) rows.push_back(forward(dp, step, seq_id, 1000 * step + 100 * seq_id + dp, 50 + seq_id));
    }
  }
  return rows;
}

TEST(LaneTable, TimesLieByOpThenStepThenDpRankFromTheStepsStart) {
  auto table = build(small_job(), dp_pp(2, 1));
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->steps(), (std::vector<std::int64_t>{4, 9}));
  EXPECT_EQ(table->op_count(), 2u);
  EXPECT_EQ(table->lane_count(), 4u);
  EXPECT_EQ(table->dp_size(), 2u);
  const double starts[2][4] = {{0, 1, 0, 1}, {100, 101, 100, 101}};
  for (OpIndex op : {0u, 1u}) {
    for (std::size_t lane = 0; lane < 4; ++lane) {
      EXPECT_EQ(table->starts_ns(op)[lane], starts[op][lane]);
      EXPECT_EQ(table->ends_ns(op)[lane], starts[op][lane] + 50 + op);
    }
  }
  EXPECT_EQ(table->step_times_ns(), (std::vector<double>{152, 152}));
}

TEST(LaneTable, RowOrderDoesNotMatter) {
  JobSpec spec;
  spec.dp_size = 3;
  spec.pp_size = 3;
  std::vector<Row> rows = testing::make_job(spec);
  const ColumnStore in_order(rows);
  auto expected = LaneTable::build(in_order.view(), spec.layout());
  ASSERT_TRUE(expected);
  std::shuffle(rows.begin(), rows.end(), std::mt19937(3));
  const ColumnStore shuffled(rows);
  auto table = LaneTable::build(shuffled.view(), spec.layout());
  ASSERT_TRUE(table);
  EXPECT_EQ(table->steps(), expected->steps());
  EXPECT_EQ(table->step_times_ns(), expected->step_times_ns());
  EXPECT_EQ(table->worker_ranks(), expected->worker_ranks());
  for (OpIndex i = 0; i < expected->op_count(); ++i) {
    const std::string name = describe(expected->template_ops()[i].op);
    OpIndex other = 0;
    while (describe(table->template_ops()[other].op) != name) ASSERT_LT(++other, table->op_count());
    for (std::size_t lane = 0; lane < table->lane_count(); ++lane) {
      ASSERT_EQ(table->starts_ns(other)[lane], expected->starts_ns(i)[lane]) << name;
      ASSERT_EQ(table->ends_ns(other)[lane], expected->ends_ns(i)[lane]) << name;
    }
  }
}

TEST(LaneTable, TheTemplateIsDpRankZeroInTheLowestStep) {
  std::vector<Row> rows = small_job();
  std::reverse(rows.begin(), rows.end());
  auto table = build(rows, dp_pp(2, 1));
  ASSERT_TRUE(table);
  ASSERT_EQ(table->template_ops().size(), 2u);
  EXPECT_EQ(table->template_ops()[0].op.seq_id, 1);
  EXPECT_EQ(table->template_ops()[0].start_ns, 4100);
  EXPECT_EQ(table->template_ops()[0].end_ns, 4151);
}

TEST(LaneTable, AWorkerGoesByItsLowestRank) {
  std::vector<Row> rows = small_job();
  rows[0].rank = 8;
  rows[1].rank = 6;  // the other op of the same worker, recorded by another member
  rows[4].rank = rows[5].rank = 7;
  auto table = build(rows, dp_pp(2, 1));
  ASSERT_TRUE(table);
  EXPECT_EQ(table->worker_ranks(), (std::vector<std::int32_t>{6, 1}));
}

TEST(LaneTable, ARankInTwoWorkersIsAnError) {
  std::vector<Row> rows = small_job();
  rows[2].rank = 0;
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)), "rank 0 appears as two workers, one of them dp rank 1, stage 0");
}

TEST(LaneTable, AMissingOpIsNamedWithItsLane) {
  std::vector<Row> rows = small_job();
  rows.erase(rows.begin() + 6);
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)),
            "1 ops in dp rank 1, step 9, but 2 in dp rank 0, step 4: the former lacks forward_compute 0 of stage 0");
}

TEST(LaneTable, AMissingLaneIsAnError) {
  std::vector<Row> rows = small_job();
  rows.erase(rows.begin() + 2, rows.begin() + 4);
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)).substr(0, 54), "0 ops in dp rank 1, step 4, but 2 in dp rank 0, step 4");
}

TEST(LaneTable, AnExtraOpIsNamedWithItsLane) {
  std::vector<Row> rows = small_job();
  rows.push_back(forward(1, 4, 2, 4300, 1));
  EXPECT_EQ(
      error_of(rows, dp_pp(2, 1)),
      "3 ops in dp rank 1, step 4, but 2 in dp rank 0, step 4: the former alone has forward_compute 2 of stage 0");
}

TEST(LaneTable, AnOpMoreThanOnceIsAnError) {
  std::vector<Row> rows = small_job();
  rows.push_back(rows[7]);
  EXPECT_EQ(
      error_of(rows, dp_pp(2, 1)),
      "3 ops in dp rank 1, step 9, but 2 in dp rank 0, step 4: the former has forward_compute 1 of stage 0 twice");
}

TEST(LaneTable, AnOpTwiceInsteadOfAnotherIsNamed) {
  std::vector<Row> rows = small_job();
  rows[7].seq_id = 0;
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)), "forward_compute 0 of stage 0 in dp rank 1, step 9 is recorded twice");
}

TEST(LaneTable, AnOpThatTheTemplateLacksIsNamed) {
  std::vector<Row> rows = small_job();
  rows[7].kind = Kind::kBackwardCompute;
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)),
            "backward_compute 1 of stage 0 in dp rank 1, step 9 is not in dp rank 0's first step");
}

TEST(LaneTable, AnOpTwiceInTheTemplateIsAnError) {
  std::vector<Row> rows = small_job();
  for (Row& row : rows) row.seq_id = 0;
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)), "forward_compute 0 of stage 0 is recorded twice in dp rank 0, step 4");
}

TEST(LaneTable, ASeqIdBeyondTheOpsOfTheStepIsAnError) {
  std::vector<Row> rows = small_job();
  rows[1].seq_id = 2;
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)),
            "forward_compute 2 of stage 0 has a seq_id beyond the 2 ops of its step in dp rank 0, step 4");
  rows[1].seq_id = std::numeric_limits<std::int32_t>::max();
  EXPECT_NE(error_of(rows, dp_pp(2, 1)).find("beyond the 2 ops"), std::string::npos);
}

TEST(LaneTable, OpsOfAllKindsOfAStageMayBeNumberedTogether) {
  std::vector<Row> rows;
  for (int i = 0; i < 24; ++i) {
    Row row = forward(0, 0, i, i, 1);
    row.kind = static_cast<Kind>(1 + i % 12);
    rows.push_back(row);
  }
  EXPECT_EQ(error_of(rows, dp_pp(1, 1)), "no error");
}

TEST(LaneTable, DpRankZeroMustHaveTheFirstStep) {
  std::vector<Row> rows = small_job();
  rows.erase(rows.begin(), rows.begin() + 2);
  EXPECT_EQ(error_of(rows, dp_pp(2, 1)), "dp rank 0 has no ops in step 4, the first one");
}

TEST(LaneTable, StepNumbersMayBeNegativeAndFarApart) {
  constexpr std::int64_t kLow = std::numeric_limits<std::int64_t>::min();
  constexpr std::int64_t kHigh = std::numeric_limits<std::int64_t>::max();
  std::vector<Row> rows;
  for (std::int64_t step : {kHigh, std::int64_t{-3}, kLow, std::int64_t{0}}) rows.push_back(forward(0, step, 0, 5, 10));
  auto table = build(rows, dp_pp(1, 1));
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->steps(), (std::vector<std::int64_t>{kLow, -3, 0, kHigh}));
  EXPECT_EQ(table->step_times_ns(), (std::vector<double>{10, 10, 10, 10}));
}

TEST(LaneTable, AStepMayStartLongBeforeOrAfterTheEpoch) {
  std::vector<Row> rows = {forward(0, 0, 0, -(std::int64_t{1} << 60), 7), forward(0, 1, 0, std::int64_t{1} << 60, 8)};
  auto table = build(rows, dp_pp(1, 1));
  ASSERT_TRUE(table);
  EXPECT_EQ(table->step_times_ns(), (std::vector<double>{7, 8}));
}

TEST(LaneTable, ALayoutWithMoreWorkersThanOpsIsRefused) {
  constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();
  EXPECT_EQ(error_of({forward(0, 0, 0, 0, 1)}, dp_pp(kLargest, 1)),
            "dp 2147483647 x pp 1 has 2147483647 workers, but there are only 1 ops");
  EXPECT_EQ(error_of({forward(0, 0, 0, 0, 1)}, dp_pp(kLargest, kLargest)),
            "dp 2147483647 x pp 2147483647 has 4611686014132420609 workers, but there are only 1 ops");
}

// Largest memory of this process so far.
std::int64_t peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}
constexpr std::int64_t kHostileLimitBytes = 256 << 20;

// One count per lane would need 1.1 GB here, for less than a megabyte of rows.
TEST(LaneTable, ManyDpRanksTimesManyStepsAreRefusedInMemoryOfTheRows) {
  constexpr int kCount = 12'000;
  std::vector<Row> rows;
  for (int i = 0; i < kCount; ++i) rows.push_back(forward(i, i, 0, 0, 1));
  const std::int64_t before = peak_bytes();
  EXPECT_EQ(error_of(rows, dp_pp(kCount, 1)).substr(0, 54), "0 ops in dp rank 1, step 0, but 1 in dp rank 0, step 0");
  EXPECT_LT(peak_bytes() - before, kHostileLimitBytes);
}

// A table by stage and seq_id would need 4 · kStages² bytes here, 900 MB.
TEST(LaneTable, ManyStagesWithHighSeqIdsAreRefusedInMemoryOfTheRows) {
  constexpr int kStages = 15'000;
  std::vector<Row> rows;
  for (int stage = 0; stage < kStages; ++stage) {
    Row row = forward(0, 0, kStages - 1, 0, 1);
    row.stage = row.rank = stage;
    rows.push_back(row);
  }
  const std::int64_t before = peak_bytes();
  EXPECT_NE(error_of(rows, dp_pp(1, kStages)).find("has a seq_id beyond"), std::string::npos);
  EXPECT_LT(peak_bytes() - before, kHostileLimitBytes);
}

}  // namespace
}  // namespace smon_rt::analysis
