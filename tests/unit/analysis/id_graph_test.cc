#include "analysis/id_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "id_rows.h"

namespace smon_rt::analysis {
namespace {

using testing::At;
using testing::IdJob;
using testing::IdRows;
using testing::JobSpec;
using testing::layout_of;
using testing::Ops;
using testing::Row;

constexpr Kind kForward = Kind::kForwardCompute;
constexpr Kind kBackward = Kind::kBackwardCompute;

// 1F1B over two stages and two dp ranks, as job_builder lays it out.
IdJob pipeline() {
  JobSpec spec;
  spec.gc = true;
  return IdJob(testing::make_job(spec), spec.layout());
}

TEST(IdGraph, ComputesOfAWorkerRunOneAfterTheOther) {
  const IdJob job = pipeline();
  // Stage 0 of two: F0 F1 B0 F2 B1 F3 B2 B3.
  const std::vector<std::pair<Kind, int>> order = {{kForward, 0},  {kForward, 1}, {kBackward, 0}, {kForward, 2},
                                                   {kBackward, 1}, {kForward, 3}, {kBackward, 2}, {kBackward, 3}};
  for (std::size_t i = 1; i < order.size(); ++i) {
    EXPECT_TRUE(
        job.waits_for(job.op(order[i].first, 0, order[i].second), job.op(order[i - 1].first, 0, order[i - 1].second)));
  }
}

TEST(IdGraph, ATransferLinksItsComputesByMicrobatch) {
  const IdJob job = pipeline();
  const OpIndex send = job.op(Kind::kForwardSend, 0, 2), recv = job.op(Kind::kForwardRecv, 1, 2);
  EXPECT_EQ(job.before(send), (Ops{job.op(kForward, 0, 2), job.op(Kind::kForwardSend, 0, 1)}));
  EXPECT_EQ(job.before(recv), (Ops{job.op(kForward, 1, 1), job.op(Kind::kForwardRecv, 1, 1)}));
  EXPECT_TRUE(job.waits_for(job.op(kForward, 1, 2), recv));
  EXPECT_EQ(testing::group_members(job.graph, send), (Ops{send, recv}));
  EXPECT_FALSE(testing::group_spans_dp(job.graph, send));
}

TEST(IdGraph, TheFirstBackwardTransfersWaitForTheSecondLastForwardBefore) {
  JobSpec spec;
  spec.pp_size = 3;
  const IdJob job(testing::make_job(spec), spec.layout());
  // Stage 0: F0 F1 F2 B0: the second last before B0 is F1.
  EXPECT_TRUE(job.waits_for(job.op(Kind::kBackwardRecv, 0, 0), job.op(kForward, 0, 1)));
}

TEST(IdGraph, TheTailFollowsTheLastComputeAndEndsWithTheOptimizer) {
  const IdJob job = pipeline();
  const OpIndex gc = job.op(Kind::kGc, 0), layernorm = job.op(Kind::kLayernormGradsAllReduce, 0);
  const OpIndex embedding = job.op(Kind::kEmbeddingGradsAllReduce, 0);
  const OpIndex reduce = job.op(Kind::kGradsReduceScatter, 0), clip = job.op(Kind::kOptimizerClipMainGrad, 0);
  EXPECT_EQ(job.before(gc), (Ops{job.op(kBackward, 0, 3)}));
  EXPECT_TRUE(job.waits_for(layernorm, gc));
  EXPECT_TRUE(job.waits_for(embedding, layernorm));
  EXPECT_TRUE(job.waits_for(reduce, embedding));
  EXPECT_TRUE(job.waits_for(clip, reduce));
  EXPECT_TRUE(job.waits_for(job.op(Kind::kOptimizer, 0), clip));
}

TEST(IdGraph, CollectivesAreGroupedAsTheirIdsSay) {
  const IdJob job = pipeline();
  const OpIndex gather = job.op(Kind::kParamsAllGather, 1);
  EXPECT_EQ(testing::group_members(job.graph, gather), (Ops{gather}));
  EXPECT_TRUE(testing::group_spans_dp(job.graph, gather));
  const OpIndex clip = job.op(Kind::kOptimizerClipMainGrad, 0);
  EXPECT_EQ(testing::group_members(job.graph, clip), (Ops{clip, job.op(Kind::kOptimizerClipMainGrad, 1)}));
  EXPECT_TRUE(testing::group_spans_dp(job.graph, clip));
  const OpIndex embedding = job.op(Kind::kEmbeddingGradsAllReduce, 0);
  EXPECT_EQ(testing::group_members(job.graph, embedding), (Ops{embedding, job.op(Kind::kEmbeddingGradsAllReduce, 1)}));
  EXPECT_FALSE(testing::group_spans_dp(job.graph, embedding));
  EXPECT_TRUE(job.waits_for(job.op(kForward, 1, 0), gather));
}

TEST(IdGraph, ChunksTellTheTransfersOfAnInterleavedStageApart) {
  IdRows made;
  const At first{0, 0, 0}, second{0, 1, 0};
  // Chunks 0 and 1 of both stages, one microbatch: global chunk c·2 + stage.
  made.compute(first, kForward, 0, 0, 10, 0);
  made.add(first, Kind::kForwardSend, 10, 12, 0, 0, 1);
  made.add(second, Kind::kForwardRecv, 0, 12, 0, 0, 1);
  made.compute(second, kForward, 0, 12, 22, 0);
  made.add(second, Kind::kForwardSend, 22, 24, 0, 0, 2);
  made.add(first, Kind::kForwardRecv, 10, 24, 0, 1, 2);
  made.compute(first, kForward, 0, 24, 34, 1);
  made.add(first, Kind::kForwardSend, 34, 36, 0, 1, 3);
  made.add(second, Kind::kForwardRecv, 22, 36, 0, 1, 3);
  made.compute(second, kForward, 0, 36, 46, 1);
  const IdJob job(made.rows, layout_of(1, 2, 2));
  for (int stage : {0, 1}) {
    for (int chunk : {0, 1}) {
      if (stage + chunk > 0) {
        EXPECT_TRUE(job.waits_for(job.op(kForward, stage, 0, chunk), job.op(Kind::kForwardRecv, stage, 0, chunk)));
      }
      if (stage + chunk < 2) {
        EXPECT_TRUE(job.waits_for(job.op(Kind::kForwardSend, stage, 0, chunk), job.op(kForward, stage, 0, chunk)));
      }
    }
  }
  const OpIndex back = job.op(Kind::kForwardSend, 1, 0, 0);
  EXPECT_EQ(testing::group_members(job.graph, back), (Ops{back, job.op(Kind::kForwardRecv, 0, 0, 1)}));
}

TEST(IdGraph, LoadingAndCollectingStandInTheComputeStream) {
  IdRows made;
  made.add({}, Kind::kDataLoading, 0, 5);
  made.compute({}, kForward, 0, 5, 15);
  made.add({}, Kind::kGc, 15, 18);
  made.compute({}, kBackward, 0, 18, 38);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(job.before(job.op(kForward, 0, 0)), (Ops{job.op(Kind::kDataLoading, 0)}));
  EXPECT_EQ(job.before(job.op(kBackward, 0, 0)), (Ops{job.op(Kind::kGc, 0)}));
}

TEST(IdGraph, AComputeWithoutACollectionBetweenWaitsForTheOneBefore) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    made.compute({0, 0, step}, kForward, 0, 0, 10);
    made.compute({0, 0, step}, kBackward, 0, 20, 40);
  }
  made.add({0, 0, 1}, Kind::kGc, 10, 15);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(job.before(job.op(kBackward, 0, 0)), (Ops{job.op(Kind::kGc, 0), job.op(kForward, 0, 0)}));
  EXPECT_FALSE(job.is_recorded(job.op(Kind::kGc, 0), 0));
}

TEST(IdGraph, ASendAlsoWaitsForWhatItsComputeHadInside) {
  IdRows made;
  made.compute({}, kForward, 0, 0, 100);
  made.add({}, Kind::kGc, 40, 60);
  made.add({}, Kind::kForwardSend, 100, 110, 0, 0);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(job.before(job.op(Kind::kForwardSend, 0, 0)), (Ops{job.op(kForward, 0, 0), job.op(Kind::kGc, 0)}));
}

TEST(IdGraph, CommunicationInsideAComputeComesAfterItAndBeforeWhatWaitsForIt) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    made.compute({0, 0, step}, kForward, 0, 0, 100);
    made.add({0, 0, step}, Kind::kParamsAllGather, 40, 60);
    made.add({0, 0, step}, Kind::kForwardSend, 100, 110, 0, 0);
    made.compute({0, 0, step}, kForward, 1, 100, 200);
  }
  const IdJob job(made.rows, layout_of(1, 1));
  const OpIndex gather = job.op(Kind::kParamsAllGather, 0), first = job.op(kForward, 0, 0);
  EXPECT_EQ(job.before(gather), (Ops{first}));
  EXPECT_EQ(job.before(job.op(kForward, 0, 1)), (Ops{first, gather}));
  EXPECT_EQ(job.before(job.op(Kind::kForwardSend, 0, 0)), (Ops{first, gather}));
}

TEST(IdGraph, CommunicationInsideAComputeInOneLaneAndOverlappedInAnotherHoldsUpNobody) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    made.compute({0, 0, step}, kBackward, 0, 0, 100);
    made.add({0, 0, step}, Kind::kGradsAllReduce, 40, step == 0 ? 60 : 120);
    made.compute({0, 0, step}, kBackward, 1, 100, 200);
  }
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(job.before(job.op(Kind::kGradsAllReduce, 0)), (Ops{job.op(kBackward, 0, 0)}));
  EXPECT_EQ(job.before(job.op(kBackward, 0, 1)), (Ops{job.op(kBackward, 0, 0)}));
}

TEST(IdGraph, ARecvPostedAheadDoesNotWaitForTheComputeBeforeItsOwn) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    const std::int64_t now = 1000 * step;
    made.compute({0, 0, step}, kForward, 0, now, now + 10);
    made.compute({0, 0, step}, kForward, 1, now + 10, now + 20);
    made.add({0, 0, step}, Kind::kForwardRecv, now + 12, now + 22, 2, 0);
    made.compute({0, 0, step}, kForward, 2, now + 22, now + 32);
  }
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(job.before(job.op(Kind::kForwardRecv, 0, 2)), (Ops{job.op(kForward, 0, 0)}));
}

TEST(IdGraph, ARecvThatTheComputingThreadWaitsForComesAfterWhateverItComputedBefore) {
  for (std::uint8_t who : {std::uint8_t{1}, std::uint8_t{2}}) {
    IdRows made;
    made.compute({}, kForward, 0, 0, 10);
    made.compute({}, kBackward, 0, 10, 30);
    made.add({}, Kind::kForwardRecv, 30, 34, 1, 0).is_waited = who;
    made.compute({}, kForward, 1, 34, 44);
    const IdJob job(made.rows, layout_of(1, 1));
    EXPECT_EQ(job.waits_for(job.op(Kind::kForwardRecv, 0, 1), job.op(kBackward, 0, 0)), who == 1);
  }
}

TEST(IdGraph, ASendBehindTheReductionOfItsGradientsWaitsForIt) {
  for (std::int64_t reduced : {15, 25}) {
    IdRows made;
    made.compute({}, kBackward, 0, 0, 20);
    made.add({}, Kind::kGradsAllReduce, 10, reduced).is_waited = 2;
    made.add({}, Kind::kBackwardSend, 26, 30, 0, 0).is_waited = 0;
    const IdJob job(made.rows, layout_of(1, 1));
    const OpIndex reduction = job.op(Kind::kGradsAllReduce, 0);
    EXPECT_EQ(job.waits_for(job.op(Kind::kBackwardSend, 0, 0), reduction), reduced == 25);
  }
}

TEST(IdGraph, CollectivesRunOneAfterTheOtherInTheirCommunicatorWhateverTheirKind) {
  IdRows made;
  made.compute({}, kForward, 0, 0, 10);
  const auto collective = [&](Kind kind, std::int64_t start, std::int64_t end, std::int32_t communicator) {
    made.add({}, kind, start, end).communicator = communicator;
  };
  collective(Kind::kGradsReduceScatter, 10, 20, 1);
  collective(Kind::kGradsReduceScatter, 22, 30, 2);
  collective(Kind::kParamsAllGather, 32, 40, 1);
  collective(Kind::kGradsReduceScatter, 42, 50, 1);
  made.compute({}, kForward, 1, 60, 70);
  // Behind the last compute one kind comes after the other, communicators of one kind still do not.
  collective(Kind::kGradsReduceScatter, 72, 80, 2);
  const IdJob job(made.rows, layout_of(1, 1));
  const OpIndex first = job.op(Kind::kGradsReduceScatter, 0), other = job.op(Kind::kGradsReduceScatter, 0, -1, -1, 1);
  const OpIndex gather = job.op(Kind::kParamsAllGather, 0), last = job.op(Kind::kGradsReduceScatter, 0, -1, -1, 2);
  EXPECT_EQ(job.before(other), (Ops{job.op(kForward, 0, 0)}));
  EXPECT_TRUE(job.waits_for(gather, first));
  EXPECT_FALSE(job.waits_for(gather, other));
  EXPECT_TRUE(job.waits_for(last, gather));
  const OpIndex behind = job.op(Kind::kGradsReduceScatter, 0, -1, -1, 3);
  EXPECT_EQ(job.before(behind), (Ops{other, gather, job.op(kForward, 0, 1)}));
}

TEST(IdGraph, TransfersWithoutAMicrobatchServeTheComputesAroundThem) {
  IdRows made;
  made.add({}, Kind::kForwardRecv, 0, 5);
  made.compute({}, kForward, 0, 5, 15);
  made.add({}, Kind::kForwardSend, 15, 18);
  made.add({}, Kind::kForwardRecv, 15, 20);
  made.compute({}, kForward, 1, 20, 30);
  const IdJob job(made.rows, layout_of(1, 1));
  const OpIndex second_recv = job.op(Kind::kForwardRecv, 0, -1, -1, 1);
  EXPECT_TRUE(job.waits_for(job.op(kForward, 0, 0), job.op(Kind::kForwardRecv, 0)));
  EXPECT_EQ(job.before(job.op(Kind::kForwardSend, 0)), (Ops{job.op(kForward, 0, 0)}));
  EXPECT_TRUE(job.waits_for(second_recv, job.op(kForward, 0, 0)));
  EXPECT_TRUE(job.waits_for(job.op(kForward, 0, 1), second_recv));
}

TEST(IdGraph, TransfersThatOverlapDoNotWaitForEachOther) {
  IdRows made;
  made.compute({}, kForward, 0, 0, 10);
  made.add({}, Kind::kForwardSend, 10, 40, 0, 0);
  made.compute({}, kForward, 1, 10, 20);
  made.add({}, Kind::kForwardSend, 20, 45, 1, 0);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(job.before(job.op(Kind::kForwardSend, 0, 1)), (Ops{job.op(kForward, 0, 1)}));
}

TEST(IdGraph, ACollectiveWaitsForTheHostAndTheHostForIt) {
  IdRows made;
  made.compute({}, kForward, 0, 0, 10);
  made.add({}, Kind::kCollective, 10, 15);
  made.compute({}, kForward, 1, 15, 25);
  made.add({}, Kind::kCollective, 26, 40);
  made.compute({}, kForward, 2, 27, 35);
  made.compute({}, kForward, 3, 41, 50);
  const IdJob job(made.rows, layout_of(1, 1));
  const OpIndex blocking = job.op(Kind::kCollective, 0), overlapped = job.op(Kind::kCollective, 0, -1, -1, 1);
  EXPECT_EQ(job.before(blocking), (Ops{job.op(kForward, 0, 0)}));
  EXPECT_TRUE(job.waits_for(job.op(kForward, 0, 1), blocking));
  EXPECT_FALSE(job.waits_for(job.op(kForward, 0, 2), overlapped));
  EXPECT_TRUE(job.waits_for(job.op(kForward, 0, 3), overlapped));
}

TEST(IdGraph, AGatherHoldsBackTheNextForwardOfItsChunkAReductionTheOptimizer) {
  IdRows made;
  made.add({}, Kind::kParamsAllGather, 0, 12, -1, 1);
  made.compute({}, kForward, 0, 0, 10, 0);
  made.compute({}, kForward, 0, 12, 22, 1);
  made.compute({}, kBackward, 0, 22, 42, 1);
  made.add({}, Kind::kGradsReduceScatter, 42, 60, -1, 1);
  made.compute({}, kBackward, 0, 42, 62, 0);
  made.add({}, Kind::kOptimizer, 62, 70);
  const IdJob job(made.rows, layout_of(1, 1, 2));
  const OpIndex gather = job.op(Kind::kParamsAllGather, 0), scatter = job.op(Kind::kGradsReduceScatter, 0);
  EXPECT_TRUE(job.before(gather).empty());
  EXPECT_FALSE(job.waits_for(job.op(kForward, 0, 0, 0), gather));
  EXPECT_TRUE(job.waits_for(job.op(kForward, 0, 0, 1), gather));
  EXPECT_EQ(job.before(scatter), (Ops{job.op(kBackward, 0, 0, 1)}));
  EXPECT_FALSE(job.waits_for(job.op(kBackward, 0, 0, 0), scatter));
  EXPECT_TRUE(job.waits_for(job.op(Kind::kOptimizer, 0), scatter));
}

TEST(IdGraph, WhatOneLaneContradictsIsNoDependency) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    made.compute({0, 0, step}, kForward, 0, 0, 10);
    made.add({0, 0, step}, Kind::kCollective, 10, step == 0 ? 15 : 18);
    made.compute({0, 0, step}, kForward, 1, step == 0 ? 15 : 17, 25);
  }
  const IdJob strict(made.rows, layout_of(1, 1));
  EXPECT_FALSE(strict.waits_for(strict.op(kForward, 0, 1), strict.op(Kind::kCollective, 0)));
  const IdJob tolerant(made.rows, layout_of(1, 1), 1'000);
  EXPECT_TRUE(tolerant.waits_for(tolerant.op(kForward, 0, 1), tolerant.op(Kind::kCollective, 0)));
}

TEST(IdGraph, WhatOnlyTheToleranceLetsFollowEachOtherIsNoCircle) {
  IdRows made;
  // Shorter than clocks may be apart: by that, the receive could have come after the compute that it is for.
  made.compute({}, kForward, 0, 5, 9);
  made.add({}, Kind::kForwardRecv, 6, 7, 0, 0);
  const IdJob job(made.rows, layout_of(1, 1), 5'000);
  EXPECT_TRUE(job.waits_for(job.op(kForward, 0, 0), job.op(Kind::kForwardRecv, 0, 0)));
  EXPECT_TRUE(job.before(job.op(Kind::kForwardRecv, 0, 0)).empty());
}

TEST(IdGraph, WhatDifferentLanesShowOfDifferentOpsIsNoCircle) {
  IdRows made;
  // Three collectives ahead of the forward, as DDP has them at first; then two behind it, and a collection between.
  for (int i : {0, 1, 2}) made.add({0, 0, 0}, Kind::kCollective, 2 * i, 2 * i + 2);
  made.compute({0, 0, 0}, kForward, 0, 6, 16);
  made.compute({0, 0, 1}, kForward, 0, 0, 10);
  made.add({0, 0, 1}, Kind::kGc, 10, 12);
  for (int i : {6, 7}) made.add({0, 0, 1}, Kind::kCollective, 2 * i, 2 * i + 2);
  const IdJob job(made.rows, layout_of(1, 1));
  const OpIndex forward = job.op(kForward, 0, 0);
  const auto collective = [&](int nth) { return job.op(Kind::kCollective, 0, -1, -1, nth); };
  EXPECT_TRUE(job.waits_for(collective(1), collective(0))) << "in each lane that has one of them";
  EXPECT_FALSE(job.waits_for(forward, collective(2)));
}

TEST(IdGraph, FewerMicrobatchesInALaneKeepItsOwnOrder) {
  JobSpec spec;
  spec.uneven_microbatches = [](int dp_rank, std::int64_t step) { return static_cast<int>(2 + dp_rank + step % 2); };
  const IdJob job(testing::make_job(spec), spec.layout());
  EXPECT_TRUE(job.lanes.left_out_steps.empty());
  // Dp rank 0 has two or three microbatches, dp rank 1 three or four.
  const OpIndex optimizer_side = job.op(Kind::kLayernormGradsAllReduce, 0);
  for (int last : {1, 2, 3}) EXPECT_TRUE(job.waits_for(optimizer_side, job.op(kBackward, 0, last))) << last;
}

TEST(IdGraph, ACollectiveOfTheOnlyRecordedWorkerOfAStageWaitsForTheOtherDpRanks) {
  IdRows made;
  for (At at : {At{0, 0}, At{0, 1}, At{1, 1}}) {
    made.compute(at, kForward, 0, 0, 10);
    // A communicator of its own in each dp rank of stage 1.
    made.add(at, Kind::kGradsReduceScatter, 10, 20, -1, -1, at.stage == 0 ? 1 : 2 + at.dp_rank);
  }
  const IdJob job(made.rows, layout_of(2, 2));
  const OpIndex alone = job.op(Kind::kGradsReduceScatter, 0), recorded_twice = job.op(Kind::kGradsReduceScatter, 1);
  ASSERT_TRUE(job.graph.is_communication(alone));
  EXPECT_TRUE(job.graph.groups()[job.graph.group_of(alone)].spans_dp);
  EXPECT_FALSE(job.graph.is_communication(recorded_twice));
}

TEST(IdGraph, OpsThatWaitForEachOtherInACircleAreNamed) {
  IdRows made;
  // Each of two stages sends only after it has received what the other sends after that.
  for (int stage : {0, 1}) {
    const At at{0, stage, 0};
    made.add(at, Kind::kForwardRecv, 0, 10, 0, 0, stage == 0 ? 1 : 2);
    made.compute(at, kForward, 0, 10, 20);
    made.add(at, Kind::kForwardSend, 20, 30, 0, 0, stage == 0 ? 2 : 1);
  }
  const testing::ColumnStore store(made.rows);
  auto lanes = build_id_lanes(store.view(), layout_of(1, 2));
  ASSERT_TRUE(lanes);
  auto graph = build_graph(*lanes, 0);
  ASSERT_FALSE(graph);
  EXPECT_NE(graph.error().message.find("wait for each other in a circle"), std::string::npos);
  EXPECT_NE(graph.error().message.find("forward_recv 0 of stage"), std::string::npos) << graph.error().message;
}

}  // namespace
}  // namespace smon_rt::analysis
