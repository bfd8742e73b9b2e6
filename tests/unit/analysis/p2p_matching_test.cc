#include "analysis/p2p_matching.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "job_builder.h"
#include "lanes.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::Lane;
using testing::Ops;

Lane pipeline(int pp_size, int microbatches) {
  JobSpec spec;
  spec.dp_size = 1;
  spec.pp_size = pp_size;
  spec.microbatches = microbatches;
  spec.steps = 1;
  spec.dp_mode = testing::DpMode::kNone;
  return Lane(testing::first_lane(testing::make_job(spec)));
}

struct Matched {
  std::string error;
  P2pMatches matches;

  // The compute an op serves, or its own index when it has none.
  OpIndex compute_of(OpIndex op) const {
    for (const P2pMatch& match : matches.matched) {
      if (match.op == op) return match.compute;
    }
    return op;
  }
  bool pairs(OpIndex send, OpIndex recv) const {
    return std::find(matches.pairs.begin(), matches.pairs.end(), std::pair(send, recv)) != matches.pairs.end();
  }
  Ops alone() const { return {matches.alone.begin(), matches.alone.end()}; }
};

Matched match(const Lane& lane, int pp_size) {
  auto sorted = LaneOps::sort(lane.recorded(), pp_size);
  EXPECT_TRUE(sorted) << sorted.error().message;
  auto matches = match_p2p(*sorted);
  if (!matches) return {matches.error().message, {}};
  return {"", *matches};
}

std::int64_t last_forward_start_us(const Lane& lane, int stage) {
  std::int64_t last = 0;
  for (const RecordedOp& each : lane.recorded()) {
    if (each.op.kind == Kind::kForwardCompute && each.op.stage == stage) last = std::max(last, each.start_ns);
  }
  return last / 1000;
}

TEST(P2pMatching, EachSendAndRecvServesTheComputeOfItsNumberAndPairsWithItsPeer) {
  const Lane lane = pipeline(3, 4);
  const Matched matched = match(lane, 3);
  ASSERT_EQ(matched.error, "");
  EXPECT_EQ(matched.matches.matched.size(), 2u * 2 * 2 * 4);  // directions, boundaries, ends, microbatches
  EXPECT_EQ(matched.matches.pairs.size(), 2u * 2 * 4);
  EXPECT_TRUE(matched.matches.alone.empty());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardSend, 1, i)), lane.find(Kind::kForwardCompute, 1, i));
    EXPECT_EQ(matched.compute_of(lane.find(Kind::kBackwardRecv, 1, i)), lane.find(Kind::kBackwardCompute, 1, i));
    EXPECT_TRUE(matched.pairs(lane.find(Kind::kForwardSend, 1, i), lane.find(Kind::kForwardRecv, 2, i)));
    EXPECT_TRUE(matched.pairs(lane.find(Kind::kBackwardSend, 1, i), lane.find(Kind::kBackwardRecv, 0, i)));
  }
}

TEST(P2pMatching, APipelineOfOneStageHasNothingToMatch) {
  const Matched matched = match(pipeline(1, 4), 1);
  EXPECT_EQ(matched.error, "");
  EXPECT_TRUE(matched.matches.matched.empty());
  EXPECT_TRUE(matched.matches.pairs.empty());
}

TEST(P2pMatching, ARecvAfterTheLastComputeStartedWasNeverLaunched) {
  Lane lane = pipeline(2, 3);
  const std::int64_t last = last_forward_start_us(lane, 0);
  const OpIndex never = lane.add(Kind::kForwardRecv, 0, 0, last + 52, last + 60);
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  EXPECT_EQ(matched.alone(), Ops{never});
  EXPECT_EQ(matched.compute_of(never), never) << "a no-op of type 1 serves no compute";
}

TEST(P2pMatching, ARecvWithinTheClockToleranceOfTheLastComputeWasLaunched) {
  Lane lane = pipeline(2, 3);
  const std::int64_t last_start_ns = lane.at(Kind::kForwardCompute, 0, 2).start_ns;
  lane.add(Kind::kForwardRecv, 0, 0, 0, 1);
  RecordedOp& recv = lane.at(Kind::kForwardRecv, 0, 0);
  recv.start_ns = last_start_ns + 50'000;
  recv.end_ns = recv.start_ns + 1;
  EXPECT_EQ(match(lane, 2).error,
            "stage 0 has 1 forward_recv for 3 forward_compute: expected as many, one fewer, or none");
  lane.at(Kind::kForwardRecv, 0, 0).start_ns += 1;
  EXPECT_EQ(match(lane, 2).error, "");
}

TEST(P2pMatching, ASendThatEndsBeforeTheFirstComputeEndedWasNeverLaunched) {
  Lane lane = pipeline(2, 3);
  lane.add(Kind::kForwardSend, 1, 0, 0, 1);
  RecordedOp& send = lane.at(Kind::kForwardSend, 1, 0);
  const OpIndex never = lane.find(Kind::kForwardSend, 1, 0);
  send.start_ns = lane.at(Kind::kForwardCompute, 1, 0).start_ns;
  send.end_ns = lane.at(Kind::kForwardCompute, 1, 0).end_ns - 50'001;
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  EXPECT_EQ(matched.alone(), Ops{never});

  lane.at(Kind::kForwardSend, 1, 0).end_ns += 1;
  EXPECT_EQ(match(lane, 2).error,
            "stage 1 has 1 forward_send for 3 forward_compute: expected as many, one fewer, or none");
}

TEST(P2pMatching, AMiddleStageThatLacksASendIsAnError) {
  Lane lane = pipeline(3, 4);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kForwardSend && op.stage == 1 && op.seq_id == 3; });
  EXPECT_EQ(match(lane, 3).error, "stage 1 has 3 forward_send for 4 forward_compute: expected as many");
}

TEST(P2pMatching, TheErrorSaysHowManyWereNotCountedAndWhy) {
  Lane lane = pipeline(3, 4);
  lane.at(Kind::kForwardSend, 1, 0).end_ns = lane.at(Kind::kForwardCompute, 1, 0).end_ns - 60'000;
  EXPECT_EQ(match(lane, 3).error,
            "stage 1 has 3 forward_send for 4 forward_compute (1 more ended before its first forward_compute had): "
            "expected as many");
}

TEST(P2pMatching, AMiddleStageWithoutAnyRecvIsAnError) {
  Lane lane = pipeline(3, 4);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kBackwardRecv && op.stage == 1; });
  EXPECT_EQ(match(lane, 3).error, "stage 1 has 0 backward_recv for 4 backward_compute: expected as many");
}

TEST(P2pMatching, AnEndStageThatLacksTwoRecvsIsAnError) {
  Lane lane = pipeline(2, 4);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kForwardRecv && op.seq_id >= 2; });
  EXPECT_EQ(match(lane, 2).error,
            "stage 1 has 2 forward_recv for 4 forward_compute: expected as many, one fewer, or none");
}

TEST(P2pMatching, SendsWithoutAsManyRecvsAtThePeerAreAnError) {
  Lane lane = pipeline(2, 4);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kForwardRecv; });
  EXPECT_EQ(match(lane, 2).error, "stage 0 has 4 forward_send but stage 1 has 0 forward_recv to pair with them");
  lane = pipeline(2, 4);
  lane.erase_if([](const Op& op) { return op.kind == Kind::kBackwardSend; });
  EXPECT_EQ(match(lane, 2).error, "stage 1 has 0 backward_send but stage 0 has 4 backward_recv to pair with them");
}

// Two stages with two chunks each: stage s holds the global chunks s and s + 2. Two microbatches; the second chunk's
// forwards come last, its backwards first. Only launch order and the two cut-offs matter here, so times are a ladder.
Lane virtual_stages() {
  Lane lane;
  constexpr int kComputes = 4;
  for (int stage = 0; stage < 2; ++stage) {
    for (int i = 0; i < kComputes; ++i) {
      const int forward_chunk = i < 2 ? 0 : 1;
      const int backward_chunk = 1 - forward_chunk;
      lane.add(Kind::kForwardCompute, stage, i, 1000 * i, 1000 * i + 900, forward_chunk, 2 * forward_chunk + stage);
      lane.add(Kind::kBackwardCompute, stage, i, 1000 * i + 9000, 1000 * i + 9900, backward_chunk,
               2 * backward_chunk + stage);
      lane.add(Kind::kForwardSend, stage, i, 1000 * i + 900, 1000 * i + 950);
      lane.add(Kind::kBackwardSend, stage, i, 1000 * i + 9900, 1000 * i + 9950);
      lane.add(Kind::kForwardRecv, stage, i, 1000 * i - 50, 1000 * i);
      lane.add(Kind::kBackwardRecv, stage, i, 1000 * i + 8950, 1000 * i + 9000);
    }
    lane.add(Kind::kOptimizer, stage, 0, 20000, 20100);
  }
  return lane;
}

TEST(P2pMatching, OpsOfAChunkWithoutPeerAreAloneButServeTheirCompute) {
  const Lane lane = virtual_stages();
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  Ops without_peer;
  for (int i : {0, 1}) {
    without_peer.insert(lane.find(Kind::kForwardRecv, 0, i));       // before global chunk 0
    without_peer.insert(lane.find(Kind::kForwardSend, 1, i + 2));   // after global chunk 3
    without_peer.insert(lane.find(Kind::kBackwardRecv, 1, i));      // after global chunk 3
    without_peer.insert(lane.find(Kind::kBackwardSend, 0, i + 2));  // before global chunk 0
  }
  EXPECT_EQ(matched.alone(), without_peer);
  EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardRecv, 0, 1)), lane.find(Kind::kForwardCompute, 0, 1));
  EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardSend, 1, 3)), lane.find(Kind::kForwardCompute, 1, 3));
}

TEST(P2pMatching, TheLastStagePassesItsFirstChunkOnToTheFirstStagesSecond) {
  const Lane lane = virtual_stages();
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  for (int i : {0, 1}) {
    EXPECT_TRUE(matched.pairs(lane.find(Kind::kForwardSend, 1, i), lane.find(Kind::kForwardRecv, 0, i + 2)));
    EXPECT_TRUE(matched.pairs(lane.find(Kind::kBackwardSend, 0, i), lane.find(Kind::kBackwardRecv, 1, i + 2)));
  }
  for (int i = 0; i < 4; ++i) {
    EXPECT_TRUE(matched.pairs(lane.find(Kind::kForwardSend, 0, i), lane.find(Kind::kForwardRecv, 1, i)));
    EXPECT_TRUE(matched.pairs(lane.find(Kind::kBackwardSend, 1, i), lane.find(Kind::kBackwardRecv, 0, i)));
  }
}

TEST(P2pMatching, OneRecvFewerThanComputesServesFromTheSecondComputeOn) {
  Lane lane = virtual_stages();
  lane.erase_if([](const Op& op) { return op.kind == Kind::kForwardRecv && op.stage == 0 && op.seq_id == 0; });
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  for (int i : {1, 2, 3}) {
    EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardRecv, 0, i)), lane.find(Kind::kForwardCompute, 0, i));
  }
  EXPECT_TRUE(matched.pairs(lane.find(Kind::kForwardSend, 1, 0), lane.find(Kind::kForwardRecv, 0, 2)));
  EXPECT_TRUE(matched.pairs(lane.find(Kind::kForwardSend, 1, 1), lane.find(Kind::kForwardRecv, 0, 3)));
}

TEST(P2pMatching, OneSendFewerThanComputesServesFromTheFirstComputeOn) {
  Lane lane = virtual_stages();
  lane.erase_if([](const Op& op) { return op.kind == Kind::kForwardSend && op.stage == 1 && op.seq_id == 3; });
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardSend, 1, 0)), lane.find(Kind::kForwardCompute, 1, 0));
  EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardSend, 1, 2)), lane.find(Kind::kForwardCompute, 1, 2));
}

TEST(P2pMatching, RealOpsPairInLaunchOrderNotBySeqId) {
  Lane lane = pipeline(2, 2);
  // The first two sends swap their numbers: what is launched first still pairs with what is received first.
  lane.at(Kind::kForwardSend, 0, 0).op.seq_id = 9;
  lane.at(Kind::kForwardSend, 0, 1).op.seq_id = 0;
  lane.at(Kind::kForwardSend, 0, 9).op.seq_id = 1;
  const Matched matched = match(lane, 2);
  ASSERT_EQ(matched.error, "");
  EXPECT_TRUE(matched.pairs(lane.find(Kind::kForwardSend, 0, 1), lane.find(Kind::kForwardRecv, 1, 0)));
  EXPECT_EQ(matched.compute_of(lane.find(Kind::kForwardSend, 0, 1)), lane.find(Kind::kForwardCompute, 0, 0));
}

}  // namespace
}  // namespace smon_rt::analysis
