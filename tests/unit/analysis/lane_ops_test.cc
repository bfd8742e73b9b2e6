#include "analysis/lane_ops.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "lanes.h"

namespace smon_rt::analysis {
namespace {

using testing::Lane;

// One stage with two forwards, two backwards and an optimizer.
Lane small_lane(int stage = 0) {
  Lane lane;
  lane.add(Kind::kForwardCompute, stage, 0, 0, 10);
  lane.add(Kind::kForwardCompute, stage, 1, 10, 20);
  lane.add(Kind::kBackwardCompute, stage, 0, 20, 40);
  lane.add(Kind::kBackwardCompute, stage, 1, 40, 60);
  lane.add(Kind::kOptimizer, stage, 0, 60, 65);
  return lane;
}

std::string error_of(const Lane& lane, std::int32_t stage_count = 1) {
  auto sorted = LaneOps::sort(lane.recorded(), stage_count);
  return sorted ? "no error" : sorted.error().message;
}

TEST(LaneOps, AStreamIsInOrderOfStart) {
  Lane lane = small_lane();
  const OpIndex late = lane.add(Kind::kForwardSend, 0, 0, 30, 31);
  const OpIndex early = lane.add(Kind::kForwardSend, 0, 1, 25, 26);
  auto sorted = LaneOps::sort(lane.recorded(), 1);
  ASSERT_TRUE(sorted);
  EXPECT_EQ(sorted->stage(0).of(Kind::kForwardSend), (std::vector<OpIndex>{early, late}));
  EXPECT_EQ(sorted->by_seq_id(Kind::kForwardSend, 0), (std::vector<OpIndex>{late, early}));
}

TEST(LaneOps, EqualStartsGoBySeqId) {
  Lane lane = small_lane();
  const OpIndex second = lane.add(Kind::kForwardSend, 0, 1, 25, 26);
  const OpIndex first = lane.add(Kind::kForwardSend, 0, 0, 25, 27);
  auto sorted = LaneOps::sort(lane.recorded(), 1);
  ASSERT_TRUE(sorted);
  EXPECT_EQ(sorted->stage(0).of(Kind::kForwardSend), (std::vector<OpIndex>{first, second}));
}

TEST(LaneOps, EqualStartsAndSeqIdsGoByKindName) {
  Lane lane;
  const OpIndex forward = lane.add(Kind::kForwardCompute, 0, 0, 5, 10);
  const OpIndex backward = lane.add(Kind::kBackwardCompute, 0, 0, 5, 10);
  lane.add(Kind::kOptimizer, 0, 0, 60, 65);
  auto sorted = LaneOps::sort(lane.recorded(), 1);
  ASSERT_TRUE(sorted);
  EXPECT_EQ(sorted->stage(0).compute, (std::vector<OpIndex>{backward, forward}));
}

TEST(LaneOps, TheComputeStreamMixesForwardsAndBackwards) {
  Lane lane;
  const OpIndex backward0 = lane.add(Kind::kBackwardCompute, 0, 0, 10, 30);
  const OpIndex backward1 = lane.add(Kind::kBackwardCompute, 0, 1, 40, 60);
  const OpIndex forward0 = lane.add(Kind::kForwardCompute, 0, 0, 0, 10);
  const OpIndex forward1 = lane.add(Kind::kForwardCompute, 0, 1, 30, 40);
  lane.add(Kind::kOptimizer, 0, 0, 60, 65);
  auto sorted = LaneOps::sort(lane.recorded(), 1);
  ASSERT_TRUE(sorted);
  EXPECT_EQ(sorted->stage(0).compute, (std::vector<OpIndex>{forward0, backward0, forward1, backward1}));
}

TEST(LaneOps, AComputeIsFoundByItsSeqIdWhateverItsPlace) {
  Lane lane;
  const OpIndex second = lane.add(Kind::kForwardCompute, 0, 1, 0, 10);
  const OpIndex first = lane.add(Kind::kForwardCompute, 0, 0, 20, 30);
  const OpIndex backward = lane.add(Kind::kBackwardCompute, 0, 0, 40, 50);
  lane.add(Kind::kOptimizer, 0, 0, 60, 65);
  auto sorted = LaneOps::sort(lane.recorded(), 1);
  ASSERT_TRUE(sorted);
  EXPECT_EQ(sorted->compute(Kind::kForwardCompute, 0, 0), first);
  EXPECT_EQ(sorted->compute(Kind::kForwardCompute, 0, 1), second);
  EXPECT_EQ(sorted->compute(Kind::kBackwardCompute, 0, 0), backward);
}

TEST(LaneOps, EachStageNeedsForwardsBackwardsAndAnOptimizer) {
  for (Kind kind : {Kind::kForwardCompute, Kind::kBackwardCompute, Kind::kOptimizer}) {
    Lane lane = small_lane();
    lane.erase_if([&](const Op& op) { return op.kind == kind; });
    EXPECT_EQ(error_of(lane), "stage 0 has no " + std::string(kind_name(kind)) +
                                  " in dp rank 0's first step: every stage needs forwards, backwards and an optimizer");
  }
  EXPECT_EQ(error_of(small_lane(), 2).substr(0, 30), "stage 1 has no forward_compute");
}

TEST(LaneOps, AHoleInTheComputesIsNamed) {
  Lane lane = small_lane();
  lane.erase_if([](const Op& op) { return op.kind == Kind::kBackwardCompute && op.seq_id == 0; });
  EXPECT_EQ(error_of(lane),
            "backward_compute of stage 0 has the seq_id 1 where 0 is due: an op is missing or recorded twice");
}

TEST(LaneOps, AComputeRecordedTwiceIsNamed) {
  Lane lane = small_lane();
  lane.add(Kind::kForwardCompute, 0, 0, 12, 13);
  EXPECT_EQ(error_of(lane),
            "forward_compute of stage 0 has the seq_id 0 where 1 is due: an op is missing or recorded twice");
}

}  // namespace
}  // namespace smon_rt::analysis
