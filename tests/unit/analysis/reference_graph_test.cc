#include "analysis/reference_graph.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "job_builder.h"
#include "lanes.h"

namespace smon_rt::analysis {
namespace {

using testing::BuiltGraph;
using testing::DpMode;
using testing::JobSpec;
using testing::Lane;
using testing::Ops;

Lane pipeline(int pp_size, int microbatches, DpMode mode = DpMode::kNone) {
  JobSpec spec;
  spec.pp_size = pp_size;
  spec.microbatches = microbatches;
  spec.steps = 1;
  spec.dp_mode = mode;
  return Lane(testing::first_lane(testing::make_job(spec)));
}

BuiltGraph build(Lane lane, std::int32_t pp_size) {
  auto graph = build_reference_graph(lane.recorded(), pp_size);
  EXPECT_TRUE(graph) << graph.error().message;
  if (!graph) return {std::move(lane), {}};
  return {std::move(lane), std::move(*graph)};
}

std::string error_of(const Lane& lane, std::int32_t pp_size) {
  auto graph = build_reference_graph(lane.recorded(), pp_size);
  return graph ? "no error" : graph.error().message;
}

constexpr Kind kForward = Kind::kForwardCompute;
constexpr Kind kBackward = Kind::kBackwardCompute;

TEST(ReferenceGraph, TheOpsAreTheRecordedOnesInTheirOrder) {
  const BuiltGraph built = build(pipeline(2, 3), 2);
  ASSERT_EQ(built.graph.size(), built.lane.recorded().size());
  for (OpIndex i = 0; i < built.graph.size(); ++i) {
    EXPECT_EQ(describe(built.graph.op(i)), describe(built.lane.recorded()[i].op));
  }
}

TEST(ReferenceGraph, ComputesWaitForTheOneBeforeInLaunchOrderAndForTheirRecv) {
  // Stage 0 runs F0 F1 B0 F2 B1 B2, stage 1 runs F0 B0 F1 B1 F2 B2.
  const BuiltGraph built = build(pipeline(2, 3), 2);
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{});
  EXPECT_EQ(built.before(kForward, 0, 1), Ops{built.op(kForward, 0, 0)});
  EXPECT_EQ(built.before(kBackward, 0, 0), (Ops{built.op(kForward, 0, 1), built.op(Kind::kBackwardRecv, 0, 0)}));
  EXPECT_EQ(built.before(kForward, 0, 2), Ops{built.op(kBackward, 0, 0)});
  EXPECT_EQ(built.before(kForward, 1, 0), Ops{built.op(Kind::kForwardRecv, 1, 0)});
  EXPECT_EQ(built.before(kBackward, 1, 0), Ops{built.op(kForward, 1, 0)});
  EXPECT_EQ(built.before(kForward, 1, 2), (Ops{built.op(kBackward, 1, 1), built.op(Kind::kForwardRecv, 1, 2)}));
}

TEST(ReferenceGraph, ASendWaitsForItsComputeAndTheSendBefore) {
  const BuiltGraph built = build(pipeline(2, 3), 2);
  EXPECT_EQ(built.before(Kind::kForwardSend, 0, 0), Ops{built.op(kForward, 0, 0)});
  EXPECT_EQ(built.before(Kind::kForwardSend, 0, 2),
            (Ops{built.op(kForward, 0, 2), built.op(Kind::kForwardSend, 0, 1)}));
  EXPECT_EQ(built.before(Kind::kBackwardSend, 1, 1),
            (Ops{built.op(kBackward, 1, 1), built.op(Kind::kBackwardSend, 1, 0)}));
}

TEST(ReferenceGraph, ARecvWaitsForTheComputeBeforeOfItsDirectionNotForWhatRanInBetween) {
  const BuiltGraph built = build(pipeline(2, 3), 2);
  EXPECT_EQ(built.before(Kind::kForwardRecv, 1, 0), Ops{});
  // On stage 1, backward 0 runs between forward 0 and forward 1: recv 1 does not wait for it.
  EXPECT_EQ(built.before(Kind::kForwardRecv, 1, 1),
            (Ops{built.op(kForward, 1, 0), built.op(Kind::kForwardRecv, 1, 0)}));
  EXPECT_EQ(built.before(Kind::kBackwardRecv, 0, 2),
            (Ops{built.op(kBackward, 0, 1), built.op(Kind::kBackwardRecv, 0, 1)}));
}

TEST(ReferenceGraph, TheFirstBackwardTransfersWaitForTheSecondLastForwardBeforeTheFirstBackward) {
  // Of three stages, stage 0 runs F0 F1 F2 B0, stage 1 runs F0 F1 B0, stage 2 runs F0 B0.
  const BuiltGraph built = build(pipeline(3, 4), 3);
  EXPECT_EQ(built.before(Kind::kBackwardRecv, 0, 0), Ops{built.op(kForward, 0, 1)});
  EXPECT_EQ(built.before(Kind::kBackwardRecv, 1, 0), Ops{built.op(kForward, 1, 0)});
  EXPECT_EQ(built.before(Kind::kBackwardSend, 1, 0), (Ops{built.op(kForward, 1, 0), built.op(kBackward, 1, 0)}));
}

TEST(ReferenceGraph, TheFirstBackwardTransfersWaitForNoForwardWhenFewerThanTwoComeBefore) {
  const BuiltGraph built = build(pipeline(3, 4), 3);
  EXPECT_EQ(built.before(Kind::kBackwardSend, 2, 0), Ops{built.op(kBackward, 2, 0)});
  const BuiltGraph single = build(pipeline(2, 1), 2);
  EXPECT_EQ(single.before(Kind::kBackwardRecv, 0, 0), Ops{});
}

TEST(ReferenceGraph, ASendAndItsRecvAreAGroupWithinTheLane) {
  const BuiltGraph built = build(pipeline(3, 4), 3);
  for (int i = 0; i < 4; ++i) {
    const Ops pair = {built.op(Kind::kForwardSend, 1, i), built.op(Kind::kForwardRecv, 2, i)};
    EXPECT_EQ(built.group(Kind::kForwardSend, 1, i), pair);
    EXPECT_EQ(built.group(Kind::kForwardRecv, 2, i), pair);
    EXPECT_FALSE(testing::group_spans_dp(built.graph, *pair.begin()));
  }
  EXPECT_FALSE(built.graph.is_communication(built.op(kForward, 1, 0)));
}

TEST(ReferenceGraph, APipelineOfOneStageIsAChainOfComputesAndATail) {
  const BuiltGraph built = build(pipeline(1, 2), 1);
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{});
  EXPECT_EQ(built.before(kBackward, 0, 1), Ops{built.op(kForward, 0, 1)});
  EXPECT_EQ(built.group(Kind::kEmbeddingGradsAllReduce, 0), Ops{built.op(Kind::kEmbeddingGradsAllReduce, 0)});
  EXPECT_EQ(built.before(Kind::kOptimizer, 0), Ops{built.op(Kind::kOptimizerClipMainGrad, 0)});
}

TEST(ReferenceGraph, ANeverLaunchedRecvStaysInItsStreamAndServesNoCompute) {
  Lane lane = pipeline(2, 3);
  const std::int64_t late_us = lane.at(kForward, 0, 2).start_ns / 1000 + 100;
  lane.add(Kind::kForwardRecv, 0, 0, late_us, late_us + 10);
  lane.add(Kind::kForwardRecv, 0, 1, late_us + 20, late_us + 30);
  const BuiltGraph built = build(std::move(lane), 2);
  EXPECT_EQ(built.before(Kind::kForwardRecv, 0, 0), Ops{});
  EXPECT_EQ(built.before(Kind::kForwardRecv, 0, 1), Ops{built.op(Kind::kForwardRecv, 0, 0)});
  EXPECT_EQ(built.group(Kind::kForwardRecv, 0, 1), Ops{built.op(Kind::kForwardRecv, 0, 1)});
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{});
}

TEST(ReferenceGraph, ARecvWithoutPeerKeepsItsComputeEdges) {
  Lane lane = pipeline(2, 2);
  // Before the first stage is nobody, yet the framework recorded a recv for each forward.
  for (int i : {0, 1}) {
    const std::int64_t start_us = lane.at(kForward, 0, i).start_ns / 1000;
    lane.add(Kind::kForwardRecv, 0, i, start_us - 10, start_us - 5);
  }
  const BuiltGraph built = build(std::move(lane), 2);
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{built.op(Kind::kForwardRecv, 0, 0)});
  EXPECT_EQ(built.before(Kind::kForwardRecv, 0, 1),
            (Ops{built.op(Kind::kForwardRecv, 0, 0), built.op(kForward, 0, 0)}));
  EXPECT_EQ(built.group(Kind::kForwardRecv, 0, 0), Ops{built.op(Kind::kForwardRecv, 0, 0)});
}

TEST(ReferenceGraph, ErrorsOfTheMatchingSurface) {
  Lane lane = pipeline(3, 4);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kForwardSend && op.stage == 1 && op.seq_id == 1; });
  EXPECT_EQ(error_of(lane, 3), "stage 1 has 3 forward_send for 4 forward_compute: expected as many");
}

TEST(ReferenceGraph, ErrorsOfTheLaneSurface) {
  Lane lane = pipeline(2, 3);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kOptimizer && op.stage == 1; });
  EXPECT_EQ(error_of(lane, 2).substr(0, 24), "stage 1 has no optimizer");
}

TEST(ReferenceGraph, AKindThatTheRulesDoNotKnowIsAnError) {
  const Kind unknown[] = {Kind::kStep,
                          Kind::kForwardBackwardCombined,
                          Kind::kGradsAllReduce,
                          Kind::kCollective,
                          Kind::kDataLoading,
                          Kind::kCheckpointSnapshot,
                          Kind::kCheckpointWait,
                          Kind::kEval,
                          Kind::kStartup,
                          Kind::kMetric,
                          Kind::kUser};
  for (Kind kind : unknown) {
    Lane lane = pipeline(2, 3);
    lane.add(kind, 1, 4, 0, 1);
    EXPECT_EQ(error_of(lane, 2),
              "the reference rules have no place for " + std::string(kind_name(kind)) + " 4 of stage 1");
  }
}

TEST(ReferenceGraph, AComputeWithoutChunkIsAnError) {
  Lane lane = pipeline(2, 3);
  lane.at(kForward, 1, 2).op.chunk = -1;
  EXPECT_EQ(error_of(lane, 2), "forward_compute 2 of stage 1 has no chunk");
  lane = pipeline(2, 3);
  lane.at(kBackward, 0, 1).op.global_chunk = -1;
  EXPECT_EQ(error_of(lane, 2), "backward_compute 1 of stage 0 has no chunk");
}

TEST(ReferenceGraph, OpsThatWaitForEachOtherAreNamed) {
  // Stage 0 runs its backward first, which needs stage 1's backward, thus its forward, thus stage 0's forward.
  Lane lane = pipeline(2, 1);
  std::swap(lane.at(kForward, 0, 0).start_ns, lane.at(kBackward, 0, 0).start_ns);
  const std::string error = error_of(lane, 2);
  EXPECT_NE(error.find("circle"), std::string::npos) << error;
  EXPECT_NE(error.find("forward_compute 0 of stage 0"), std::string::npos) << error;
}

}  // namespace
}  // namespace smon_rt::analysis
