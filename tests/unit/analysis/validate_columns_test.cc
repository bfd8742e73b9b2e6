#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "analysis/op_columns.h"
#include "job_builder.h"

namespace smon_rt::analysis {
namespace {

using testing::ColumnStore;
using testing::Row;

constexpr JobLayout kLayout = {2, 3, 1, 1, 1, 6};
constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

// The error of three rows of which the second was changed.
std::string error_of(const std::function<void(Row&)>& change, const JobLayout& layout = kLayout) {
  std::vector<Row> rows(3);
  for (Row& row : rows) row.kind = Kind::kForwardCompute;
  change(rows[1]);
  const ColumnStore store(rows);
  auto valid = validate_columns(store.view(), layout);
  return valid ? "no error" : valid.error().message;
}

void nothing(Row&) {}

TEST(ValidateColumns, RowsInsideTheLayoutAreFine) {
  EXPECT_EQ(error_of(nothing), "no error");
  EXPECT_EQ(error_of([](Row& row) { row.dp_rank = 1, row.stage = 2; }), "no error");
}

TEST(ValidateColumns, ChunkAndMicrobatchMayBeAnything) {
  EXPECT_EQ(error_of([](Row& row) { row.chunk = -7, row.global_chunk = -7, row.microbatch = -7; }), "no error");
}

TEST(ValidateColumns, StepsMayBeNegativeOrLarge) {
  EXPECT_EQ(error_of([](Row& row) { row.step = std::numeric_limits<std::int64_t>::min(); }), "no error");
  EXPECT_EQ(error_of([](Row& row) { row.step = kLargest; }), "no error");
}

TEST(ValidateColumns, ADpRankOutsideTheLayoutIsNamedWithItsRow) {
  EXPECT_EQ(error_of([](Row& row) { row.dp_rank = 2; }), "dp_rank 2 in row 1 is outside 0..1");
  EXPECT_EQ(error_of([](Row& row) { row.dp_rank = -1; }), "dp_rank -1 in row 1 is outside 0..1");
}

TEST(ValidateColumns, AStageOutsideTheLayoutIsNamedWithItsRow) {
  EXPECT_EQ(error_of([](Row& row) { row.stage = 3; }), "stage 3 in row 1 is outside 0..2");
  EXPECT_EQ(error_of([](Row& row) { row.stage = -5; }), "stage -5 in row 1 is outside 0..2");
}

TEST(ValidateColumns, ANegativeRankIsNamedWithItsRow) {
  EXPECT_EQ(error_of([](Row& row) { row.rank = -2; }), "rank -2 in row 1 is negative");
}

TEST(ValidateColumns, AnUnknownKindIsNamedWithItsRow) {
  EXPECT_EQ(error_of([](Row& row) { row.kind = static_cast<Kind>(25); }), "kind 25 in row 1 is outside 0..24");
  EXPECT_EQ(error_of([](Row& row) { row.kind = static_cast<Kind>(255); }), "kind 255 in row 1 is outside 0..24");
  EXPECT_EQ(error_of([](Row& row) { row.kind = Kind::kUser; }), "no error");
}

TEST(ValidateColumns, ANegativeSeqIdIsNamedWithItsRow) {
  EXPECT_EQ(error_of([](Row& row) { row.seq_id = -1; }), "seq_id -1 in row 1 is negative");
}

TEST(ValidateColumns, ANegativeDurationIsNamedWithItsRow) {
  EXPECT_EQ(error_of([](Row& row) { row.duration_ns = -3; }), "duration -3 ns in row 1 is negative");
  EXPECT_EQ(error_of([](Row& row) { row.duration_ns = 0; }), "no error");
}

TEST(ValidateColumns, TimesThatWouldOverflowAreNamedWithTheirRow) {
  const std::string error = "times in row 1 are too large to be nanoseconds of one job";
  EXPECT_EQ(error_of([](Row& row) { row.start_ns = kLargest / 4; }), error);
  EXPECT_EQ(error_of([](Row& row) { row.start_ns = std::numeric_limits<std::int64_t>::min(); }), error);
  EXPECT_EQ(error_of([](Row& row) { row.duration_ns = kLargest / 4; }), error);
  EXPECT_EQ(error_of([](Row& row) { row.start_ns = kLargest / 4 - 1, row.duration_ns = kLargest / 4 - 1; }),
            "no error");
}

TEST(ValidateColumns, EveryParallelSizeMustBeAtLeastOne) {
  for (std::int32_t JobLayout::* size :
       {&JobLayout::dp_size, &JobLayout::pp_size, &JobLayout::tp_size, &JobLayout::cp_size, &JobLayout::vpp_size}) {
    for (std::int32_t wrong : {0, -4}) {
      JobLayout layout = kLayout;
      layout.*size = wrong;
      EXPECT_EQ(error_of(nothing, layout), "every parallel size must be at least 1, got " + std::to_string(wrong));
    }
  }
}

TEST(ValidateColumns, NoRowsAreAnError) {
  const ColumnStore store{{}};
  auto valid = validate_columns(store.view(), kLayout);
  ASSERT_FALSE(valid);
  EXPECT_EQ(valid.error().message, "there are no ops");
}

}  // namespace
}  // namespace smon_rt::analysis
