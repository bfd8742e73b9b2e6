#include "analysis/waits_for_missing.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "analysis/lost_ops.h"
#include "id_rows.h"

namespace smon_rt::analysis {
namespace {

using testing::IdJob;
using testing::IdRows;

// A message from stage 0 to stage 1 in each of three dp ranks, and a collective of stage 0. Stage 0 of the last dp rank
// was not recorded; its message arrives at `arrival_us`, those of the others at 35.
IdRows job_with_missing_sender(std::int64_t arrival_us) {
  IdRows made;
  for (int dp : {0, 1, 2}) {
    if (dp < 2) {
      made.compute({dp, 0}, Kind::kForwardCompute, 0, 0, 30);
      made.add({dp, 0}, Kind::kForwardSend, 30, 35, 0, 0, 1 + dp);
      made.add({dp, 0}, Kind::kGradsReduceScatter, 30, 40, -1, -1, 9);
    }
    const std::int64_t end_us = dp < 2 ? 35 : arrival_us;
    made.add({dp, 1}, Kind::kForwardRecv, 5, end_us, 0, 0, 1 + dp);
    made.compute({dp, 1}, Kind::kForwardCompute, 0, end_us, end_us + 10);
  }
  return made;
}

struct Measured {
  explicit Measured(std::int64_t arrival_us) : job(job_with_missing_sender(arrival_us).rows, testing::layout_of(3, 2)) {
    put_in_lost_ops(job.lanes.table, job.graph);
    timing = measure_ops(job.lanes.table, job.graph, {.drops_implausible = false, .counts_negative_transfers = true});
    mark_waits_for_missing(job.lanes.table, job.graph, timing);
  }
  WhatIf what_if() const { return WhatIf(job.graph, timing, 3, 2); }

  IdJob job;
  OpTiming timing;
};

TEST(WaitsForMissing, AMessageFromWhoWasNotRecordedIsNoEvidenceOfASlowLink) {
  const Measured measured(55);
  const OpIndex recv = measured.job.op(Kind::kForwardRecv, 1, 0);
  EXPECT_TRUE(measured.timing.complete.has(recv, 0));
  EXPECT_TRUE(measured.timing.complete.has(recv, 1));
  EXPECT_FALSE(measured.timing.complete.has(recv, 2));
  EXPECT_FALSE(measured.timing.counted.has(recv, 2));
  EXPECT_EQ(measured.timing.durations(recv)[2], 25'000);
}

TEST(WaitsForMissing, WithoutThemTheStepIsShorterByWhatTheMissingWorkerWasLate) {
  const Measured late(55);
  const std::optional<std::vector<double>> steps = without_waits_for_missing(late.what_if());
  ASSERT_TRUE(steps);
  EXPECT_EQ(*steps, std::vector<double>{45'000});  // recorded: 65'000
}

TEST(WaitsForMissing, ACollectiveIsEvidenceWhereTheMissingWorkersMessagesCameInTime) {
  const Measured in_time(35), late(55);
  const OpIndex reduce = in_time.job.op(Kind::kGradsReduceScatter, 0);
  EXPECT_TRUE(in_time.timing.complete.has(reduce, 0));
  EXPECT_FALSE(late.timing.complete.has(reduce, 0));
}

TEST(WaitsForMissing, NothingIsAskedWhereEverybodyWasRecorded) {
  IdRows made;
  for (int dp : {0, 1}) made.compute({dp, 0}, Kind::kForwardCompute, 0, 0, 30);
  IdJob job(made.rows, testing::layout_of(2, 1));
  OpTiming timing = measure_ops(job.lanes.table, job.graph);
  mark_waits_for_missing(job.lanes.table, job.graph, timing);
  EXPECT_TRUE(timing.complete.is_everything());
  EXPECT_FALSE(without_waits_for_missing(WhatIf(job.graph, timing, 2, 1)));
}

// Stage 1 was not recorded at all: nothing tells what its messages take, but that one dp rank waits longer.
TEST(WaitsForMissing, OfAStageThatWasNotRecordedOnlyWhatADpRankWaitsLongerThanTheOthersIsTaken) {
  IdRows made;
  for (int dp : {0, 1, 2}) {
    made.compute({dp, 0}, Kind::kForwardCompute, 0, 0, 30);
    made.add({dp, 0}, Kind::kBackwardRecv, 30, dp < 2 ? 50 : 80, 0, 0, 1 + dp);
    made.compute({dp, 0}, Kind::kBackwardCompute, 0, dp < 2 ? 50 : 80, dp < 2 ? 70 : 100);
  }
  IdJob job(made.rows, testing::layout_of(3, 2));
  OpTiming timing = measure_ops(job.lanes.table, job.graph);
  mark_waits_for_missing(job.lanes.table, job.graph, timing);
  const OpIndex recv = job.op(Kind::kBackwardRecv, 0, 0);
  EXPECT_FALSE(timing.complete.has(recv, 0));
  const WhatIf what_if(job.graph, timing, 3, 2);
  EXPECT_EQ(what_if.ideal_durations()[recv], 20'000);
  EXPECT_EQ(*without_waits_for_missing(what_if), std::vector<double>{70'000});
}

}  // namespace
}  // namespace smon_rt::analysis
