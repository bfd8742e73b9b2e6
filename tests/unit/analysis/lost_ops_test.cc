#include "analysis/lost_ops.h"

#include <gtest/gtest.h>

#include <utility>

#include "id_rows.h"

namespace smon_rt::analysis {
namespace {

using testing::At;
using testing::IdJob;
using testing::IdRows;

// A send from stage 0 to stage 1 in three steps; the sender of the second one is lost.
IdRows one_lost_send() {
  IdRows made;
  for (std::int64_t step : {0, 1, 2}) {
    made.compute({0, 0, step}, Kind::kForwardCompute, 0, 0, 30);
    if (step != 1) made.add({0, 0, step}, Kind::kForwardSend, 30, 35, 0, 0, 1);
    made.add({0, 1, step}, Kind::kForwardRecv, 5, 35, 0, 0, 1);
    made.compute({0, 1, step}, Kind::kForwardCompute, 0, 35, 45);
  }
  return made;
}

TEST(LostOps, AnOpWhosePartnerWasRecordedIsPutInWhereItCouldStart) {
  IdJob job(one_lost_send().rows, testing::layout_of(1, 2));
  const OpIndex send = job.op(Kind::kForwardSend, 0, 0);
  put_in_lost_ops(job.lanes.table, job.graph);
  EXPECT_FALSE(job.lanes.table.recorded().has(send, 1));
  EXPECT_TRUE(job.lanes.table.takes_part().has(send, 1));
  EXPECT_EQ(job.lanes.table.starts_ns(send)[1], 30'000);
  EXPECT_EQ(job.lanes.table.ends_ns(send)[1], 30'000);
}

TEST(LostOps, ALostReceiveEndsWhenTheSenderCame) {
  IdRows made = one_lost_send();
  std::erase_if(made.rows, [](const testing::Row& row) { return row.step == 0 && row.kind == Kind::kForwardRecv; });
  IdJob job(made.rows, testing::layout_of(1, 2));
  const OpIndex recv = job.op(Kind::kForwardRecv, 1, 0);
  put_in_lost_ops(job.lanes.table, job.graph);
  EXPECT_TRUE(job.lanes.table.takes_part().has(recv, 0));
  EXPECT_EQ(job.lanes.table.starts_ns(recv)[0], 0);
  EXPECT_EQ(job.lanes.table.ends_ns(recv)[0], 30'000);
}

TEST(LostOps, WhatNobodyOfItsGroupRecordedNeverHappened) {
  IdRows made = one_lost_send();
  std::erase_if(made.rows, [](const testing::Row& row) { return row.step == 1 && row.kind == Kind::kForwardRecv; });
  IdJob job(made.rows, testing::layout_of(1, 2));
  put_in_lost_ops(job.lanes.table, job.graph);
  EXPECT_FALSE(job.lanes.table.takes_part().has(job.op(Kind::kForwardSend, 0, 0), 1));
  EXPECT_FALSE(job.lanes.table.takes_part().has(job.op(Kind::kForwardRecv, 1, 0), 1));
}

TEST(LostOps, AMemberOfAnotherDpRankIsAPartnerWhereTheGroupSpansThem) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    for (int dp : {0, 1}) {
      made.compute({dp, 0, step}, Kind::kBackwardCompute, 0, 0, 10 + dp);
      if (step == 0 || dp == 1) made.add({dp, 0, step}, Kind::kGradsAllReduce, 10 + dp, 20, -1, -1, 3);
    }
  }
  IdJob job(made.rows, testing::layout_of(2, 1));
  const OpIndex reduce = job.op(Kind::kGradsAllReduce, 0);
  put_in_lost_ops(job.lanes.table, job.graph);
  // Lane 2 is dp rank 0 in step 1: it came at 10, its peer at 11.
  EXPECT_TRUE(job.lanes.table.takes_part().has(reduce, 2));
  EXPECT_EQ(job.lanes.table.starts_ns(reduce)[2], 10'000);
  EXPECT_EQ(job.lanes.table.ends_ns(reduce)[2], 11'000);
}

// A message from stage 0 to stage 1 in each of three dp ranks; stage 0 of the last one was not recorded at all.
IdRows job_without_one_sender(std::int64_t arrival_us) {
  IdRows made;
  for (int dp : {0, 1, 2}) {
    if (dp < 2) made.compute({dp, 0}, Kind::kForwardCompute, 0, 0, 30);
    if (dp < 2) made.add({dp, 0}, Kind::kForwardSend, 30, 35, 0, 0, 1 + dp);
    made.add({dp, 1}, Kind::kForwardRecv, 5, dp < 2 ? 35 : arrival_us, 0, 0, 1 + dp);
    made.compute({dp, 1}, Kind::kForwardCompute, 0, arrival_us, arrival_us + 10);
  }
  return made;
}

TEST(LostOps, AWorkerThatWasNotRecordedDidWhatTheOthersOfItsStageDid) {
  IdJob job(job_without_one_sender(50).rows, testing::layout_of(3, 2));
  put_in_lost_ops(job.lanes.table, job.graph);
  const OpIndex compute = job.op(Kind::kForwardCompute, 0, 0), send = job.op(Kind::kForwardSend, 0, 0);
  EXPECT_TRUE(job.lanes.table.takes_part().has(compute, 2));
  EXPECT_FALSE(job.lanes.table.recorded().has(compute, 2));
  EXPECT_EQ(job.lanes.table.ends_ns(compute)[2], 30'000);
  EXPECT_EQ(job.lanes.table.starts_ns(send)[2], 30'000);
}

TEST(LostOps, AWorkerThatWasNotRecordedWasReadyWhenItsMessageArrived) {
  IdJob job(job_without_one_sender(32).rows, testing::layout_of(3, 2));
  put_in_lost_ops(job.lanes.table, job.graph);
  // A message takes 5.
  EXPECT_EQ(job.lanes.table.ends_ns(job.op(Kind::kForwardCompute, 0, 0))[2], 27'000);
}

TEST(LostOps, OneSlowWorkerOfTwoDoesNotMakeTheMissingOneSlow) {
  IdRows made = job_without_one_sender(60);
  made.rows.front().duration_ns = 50'000;  // dp rank 0 computes 50, dp rank 1 30
  IdJob job(made.rows, testing::layout_of(3, 2));
  put_in_lost_ops(job.lanes.table, job.graph);
  EXPECT_EQ(job.lanes.table.ends_ns(job.op(Kind::kForwardCompute, 0, 0))[2], 30'000);
}

}  // namespace
}  // namespace smon_rt::analysis
