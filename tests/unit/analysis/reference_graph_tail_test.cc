// The part of the reference rules that concerns data parallelism and what follows the last compute.

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "analysis/reference_graph.h"
#include "job_builder.h"
#include "lanes.h"

namespace smon_rt::analysis {
namespace {

using testing::BuiltGraph;
using testing::DpMode;
using testing::JobSpec;
using testing::Lane;
using testing::Ops;

constexpr Kind kForward = Kind::kForwardCompute;
constexpr Kind kBackward = Kind::kBackwardCompute;
constexpr Kind kGather = Kind::kParamsAllGather;
constexpr Kind kScatter = Kind::kGradsReduceScatter;
constexpr Kind kLayernorm = Kind::kLayernormGradsAllReduce;
constexpr Kind kEmbedding = Kind::kEmbeddingGradsAllReduce;
constexpr Kind kSeparate = Kind::kSeparateGradsAllReduce;
constexpr Kind kClip = Kind::kOptimizerClipMainGrad;

Lane pipeline(DpMode mode, int pp_size = 3, bool gc = true) {
  JobSpec spec;
  spec.pp_size = pp_size;
  spec.steps = 1;
  spec.dp_mode = mode;
  spec.gc = gc;
  return Lane(testing::first_lane(testing::make_job(spec)));
}

BuiltGraph build(Lane lane, std::int32_t pp_size = 3) {
  auto graph = build_reference_graph(lane.recorded(), pp_size);
  EXPECT_TRUE(graph) << graph.error().message;
  if (!graph) return {std::move(lane), {}};
  return {std::move(lane), std::move(*graph)};
}

std::string error_of(const Lane& lane, std::int32_t pp_size = 3) {
  auto graph = build_reference_graph(lane.recorded(), pp_size);
  return graph ? "no error" : graph.error().message;
}

// Moves one op to other times.
void place(Lane& lane, Kind kind, int stage, int seq_id, std::int64_t start_ns) {
  RecordedOp& recorded = lane.at(kind, stage, seq_id);
  recorded.end_ns += start_ns - recorded.start_ns;
  recorded.start_ns = start_ns;
}

TEST(ReferenceGraphTail, WithoutDpTheTailIsGcLayernormEmbeddingClipOptimizer) {
  const BuiltGraph built = build(pipeline(DpMode::kNone));
  EXPECT_EQ(built.before(Kind::kGc, 0), Ops{built.op(kBackward, 0, 3)});
  EXPECT_EQ(built.before(kLayernorm, 0), Ops{built.op(Kind::kGc, 0)});
  EXPECT_EQ(built.before(kEmbedding, 0), Ops{built.op(kLayernorm, 0)});
  EXPECT_EQ(built.before(kClip, 0), Ops{built.op(kEmbedding, 0)});
  EXPECT_EQ(built.before(Kind::kOptimizer, 0), Ops{built.op(kClip, 0)});
  // The middle stage has no embedding.
  EXPECT_EQ(built.before(kClip, 1), Ops{built.op(kLayernorm, 1)});
}

TEST(ReferenceGraphTail, WithoutOverlapTheReduceScatterComesBetweenEmbeddingAndClip) {
  const BuiltGraph built = build(pipeline(DpMode::kPlain));
  EXPECT_EQ(built.before(kLayernorm, 0), Ops{built.op(Kind::kGc, 0)});
  EXPECT_EQ(built.before(kScatter, 0), (Ops{built.op(kEmbedding, 0), built.op(kGather, 0)}));
  EXPECT_EQ(built.before(kScatter, 1), (Ops{built.op(kLayernorm, 1), built.op(kGather, 1)}));
  EXPECT_EQ(built.before(kClip, 0), Ops{built.op(kScatter, 0)});
}

TEST(ReferenceGraphTail, WithoutOverlapAllReduceScattersRunInOrder) {
  Lane lane = pipeline(DpMode::kPlain);
  const std::int64_t end_us = lane.at(kScatter, 1, 0).end_ns / 1000;
  lane.add(kScatter, 1, 1, end_us + 1, end_us + 2);
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(kScatter, 1, 1), Ops{built.op(kScatter, 1, 0)});
  EXPECT_EQ(built.before(kClip, 1), Ops{built.op(kScatter, 1, 1)});
}

TEST(ReferenceGraphTail, WithOverlapTheReduceScatterWaitsForTheLastBackwardOfItsChunk) {
  const BuiltGraph built = build(pipeline(DpMode::kOverlapped));
  EXPECT_EQ(built.before(kScatter, 0), (Ops{built.op(kGather, 0), built.op(kBackward, 0, 3)}));
  EXPECT_EQ(built.before(kLayernorm, 0), (Ops{built.op(Kind::kGc, 0), built.op(kScatter, 0)}));
  EXPECT_EQ(built.before(kSeparate, 0), Ops{built.op(kEmbedding, 0)});
  EXPECT_EQ(built.before(kSeparate, 1), Ops{built.op(kLayernorm, 1)});
  EXPECT_EQ(built.before(kClip, 0), Ops{built.op(kSeparate, 0)});
}

TEST(ReferenceGraphTail, WithOverlapOnlyTheFirstReduceScatterOfAChunkWaitsForItsBackward) {
  Lane lane = pipeline(DpMode::kOverlapped);
  const std::int64_t end_us = lane.at(kScatter, 1, 0).end_ns / 1000;
  lane.add(kScatter, 1, 1, end_us + 1, end_us + 2);
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(kScatter, 1, 0), (Ops{built.op(kGather, 1), built.op(kBackward, 1, 3)}));
  EXPECT_EQ(built.before(kScatter, 1, 1), Ops{built.op(kScatter, 1, 0)});
  EXPECT_EQ(built.before(kLayernorm, 1), (Ops{built.op(Kind::kGc, 1), built.op(kScatter, 1, 1)}));
}

TEST(ReferenceGraphTail, WithOverlapEachChunkHasItsOwnFirstReduceScatter) {
  // One stage whose second backward and second forward belong to chunk 1.
  Lane lane = pipeline(DpMode::kOverlapped, 1);
  for (Kind kind : {kForward, kBackward}) {
    for (int i : {2, 3}) lane.at(kind, 0, i).op.chunk = 1;
  }
  const std::int64_t end_us = lane.at(kScatter, 0, 0).end_ns / 1000;
  lane.add(kScatter, 0, 1, end_us + 1, end_us + 2, 1);
  const BuiltGraph built = build(std::move(lane), 1);
  EXPECT_EQ(built.before(kScatter, 0, 0), (Ops{built.op(kGather, 0), built.op(kBackward, 0, 1)}));
  EXPECT_EQ(built.before(kScatter, 0, 1), (Ops{built.op(kScatter, 0, 0), built.op(kBackward, 0, 3)}));
}

TEST(ReferenceGraphTail, AGatherComesBeforeTheFirstForwardOfItsChunk) {
  const BuiltGraph built = build(pipeline(DpMode::kPlain));
  EXPECT_EQ(built.before(kGather, 0), Ops{});
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{built.op(kGather, 0)});
  EXPECT_EQ(built.before(kForward, 1, 0), (Ops{built.op(kGather, 1), built.op(Kind::kForwardRecv, 1, 0)}));
}

TEST(ReferenceGraphTail, OfSeveralGathersOfAChunkTheForwardWaitsForTheLast) {
  Lane lane = pipeline(DpMode::kPlain);
  const std::int64_t start_us = lane.at(kGather, 0, 0).end_ns / 1000;
  lane.add(kGather, 0, 1, start_us + 1, start_us + 2);
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{built.op(kGather, 0, 1)});
  EXPECT_EQ(built.before(kGather, 0, 1), Ops{built.op(kGather, 0, 0)});
}

TEST(ReferenceGraphTail, GathersAndScattersShareOneStreamInLaunchOrder) {
  Lane lane = pipeline(DpMode::kPlain);
  place(lane, kScatter, 0, 0, lane.at(kGather, 0, 0).start_ns - 1);
  // Launched first, the scatter is ahead of the gather in the stream; the gather is ahead of the forwards and these
  // of the scatter: a circle.
  EXPECT_NE(error_of(lane).find("circle"), std::string::npos) << error_of(lane);
}

TEST(ReferenceGraphTail, AGatherOfAChunkWithoutForwardIsAnError) {
  Lane lane = pipeline(DpMode::kPlain);
  lane.at(kGather, 1, 0).op.chunk = 5;
  EXPECT_EQ(error_of(lane),
            "params_all_gather 0 of stage 1 belongs to chunk 5, of which the stage has no forward_compute");
}

TEST(ReferenceGraphTail, AnOverlappedScatterOfAChunkWithoutBackwardIsAnError) {
  Lane lane = pipeline(DpMode::kOverlapped);
  lane.at(kScatter, 1, 0).op.chunk = -1;
  EXPECT_EQ(error_of(lane),
            "grads_reduce_scatter 0 of stage 1 belongs to chunk -1, of which the stage has no backward_compute");
  // Without overlap nobody asks for its chunk.
  lane = pipeline(DpMode::kPlain);
  lane.at(kScatter, 1, 0).op.chunk = -1;
  EXPECT_EQ(error_of(lane), "no error");
}

TEST(ReferenceGraphTail, DpCollectivesAreGroupsOfOneStageOverAllDpRanks) {
  const BuiltGraph built = build(pipeline(DpMode::kOverlapped));
  for (Kind kind : {kGather, kScatter, kSeparate}) {
    for (int stage = 0; stage < 3; ++stage) {
      EXPECT_EQ(built.group(kind, stage), Ops{built.op(kind, stage)});
      EXPECT_TRUE(built.spans_dp(kind, stage));
    }
  }
}

TEST(ReferenceGraphTail, TheEmbeddingIsAGroupOfFirstAndLastStageWithinADpRank) {
  const BuiltGraph built = build(pipeline(DpMode::kPlain));
  EXPECT_EQ(built.group(kEmbedding, 0), (Ops{built.op(kEmbedding, 0), built.op(kEmbedding, 2)}));
  EXPECT_EQ(built.group(kEmbedding, 2), built.group(kEmbedding, 0));
  EXPECT_FALSE(built.spans_dp(kEmbedding, 0));
}

TEST(ReferenceGraphTail, AnEmbeddingInTheMiddleIsAnError) {
  Lane lane = pipeline(DpMode::kPlain);
  lane.add(kEmbedding, 1, 0, 0, 1);
  EXPECT_EQ(error_of(lane), "embedding_grads_all_reduce 0 of stage 1 is on neither the first nor the last stage");
}

TEST(ReferenceGraphTail, TheClipIsAGroupOfAllStagesAndDpRanks) {
  const BuiltGraph built = build(pipeline(DpMode::kPlain));
  EXPECT_EQ(built.group(kClip, 1), (Ops{built.op(kClip, 0), built.op(kClip, 1), built.op(kClip, 2)}));
  EXPECT_TRUE(built.spans_dp(kClip, 1));
}

TEST(ReferenceGraphTail, GcLayernormAndOptimizerAreInNoGroup) {
  const BuiltGraph built = build(pipeline(DpMode::kPlain));
  for (Kind kind : {Kind::kGc, kLayernorm, Kind::kOptimizer}) {
    EXPECT_FALSE(built.graph.is_communication(built.op(kind, 1))) << kind_name(kind);
  }
}

TEST(ReferenceGraphTail, KindsThatWereNotRecordedArePassedOver) {
  Lane lane = pipeline(DpMode::kPlain);
  lane.erase_if([](const Op& op) {
    return op.kind == Kind::kGc || op.kind == kLayernorm || op.kind == kEmbedding || op.kind == kClip;
  });
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(kScatter, 2), (Ops{built.op(kGather, 2), built.op(kBackward, 2, 3)}));
  EXPECT_EQ(built.before(Kind::kOptimizer, 2), Ops{built.op(kScatter, 2)});
}

TEST(ReferenceGraphTail, WithOverlapAndNoLayernormTheEmbeddingWaitsForGcAndScatter) {
  Lane lane = pipeline(DpMode::kOverlapped);
  lane.erase_if([](const Op& op) { return op.kind == kLayernorm; });
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(kEmbedding, 0), (Ops{built.op(Kind::kGc, 0), built.op(kScatter, 0)}));
}

TEST(ReferenceGraphTail, TheTailWaitsForTheComputeThatEndsLast) {
  Lane lane = pipeline(DpMode::kNone);
  // The backward launched before the last one ends after it.
  lane.at(kBackward, 1, 2).end_ns = lane.at(kBackward, 1, 3).end_ns + 1;
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(Kind::kGc, 1), Ops{built.op(kBackward, 1, 2)});
}

TEST(ReferenceGraphTail, SeveralOptimizersRunOneAfterTheOther) {
  Lane lane = pipeline(DpMode::kNone);
  const std::int64_t end_us = lane.at(Kind::kOptimizer, 0, 0).end_ns / 1000;
  lane.add(Kind::kOptimizer, 0, 1, end_us + 1, end_us + 2);
  const BuiltGraph built = build(std::move(lane));
  EXPECT_EQ(built.before(Kind::kOptimizer, 0, 1), Ops{built.op(Kind::kOptimizer, 0, 0)});
}

TEST(ReferenceGraphTail, ACollectiveThatSomeOfItsStagesLackIsAnError) {
  Lane lane = pipeline(DpMode::kNone);
  lane.erase_if([](const Op& op) { return op.kind == kEmbedding && op.stage == 2; });
  EXPECT_EQ(
      error_of(lane),
      "stage 0 has 1 embedding_grads_all_reduce, but stage 2 has 0: they are one collective, record it on both or "
      "on neither");
  lane = pipeline(DpMode::kNone);
  lane.erase_if([](const Op& op) { return op.kind == kClip && op.stage == 1; });
  EXPECT_EQ(error_of(lane),
            "stage 0 has 1 optimizer_clip_main_grad, but stage 1 has 0: they are one collective, record it on both or "
            "on neither");
}

TEST(ReferenceGraphTail, AJobWithDpMayRecordNoDpCommunication) {
  const BuiltGraph built = build(pipeline(DpMode::kNone));
  EXPECT_EQ(built.before(kForward, 0, 0), Ops{});
  EXPECT_EQ(built.before(kClip, 1), Ops{built.op(kLayernorm, 1)});
}

}  // namespace
}  // namespace smon_rt::analysis
