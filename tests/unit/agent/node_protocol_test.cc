// Promises, captures and skips on one node.
#include "agent/node_protocol.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "protocol_node.h"

namespace smon_rt {
namespace {

using agent_messages::SkipCause;

TEST(NodeProtocol, PromisesTheNextStepThatIsDueToEachRank) {
  ProtocolNode node(2, 10);
  ASSERT_TRUE(node.restart(1, kInitialState));
  const auto promises = effects_of<PromiseMade>(node.advance());
  ASSERT_EQ(promises.size(), 2U);
  EXPECT_EQ(promises[0].label, (Label{1, 10}));
  EXPECT_EQ(promises[1].label, (Label{1, 10}));
  EXPECT_TRUE(effects_of<PromiseMade>(node.advance()).empty()) << "one at a time";
}

TEST(NodeProtocol, AStepIsAgreedOnceEveryRankHasCapturedIt) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  ASSERT_TRUE(node.capture(0));
  EXPECT_TRUE(effects_of<StepAgreed>(node.advance()).empty());
  ASSERT_TRUE(node.capture(1));
  const auto agreed = effects_of<StepAgreed>(node.advance());
  ASSERT_EQ(agreed.size(), 1U);
  EXPECT_EQ(agreed[0].label, (Label{1, 1}));
  EXPECT_TRUE(effects_of<StepAgreed>(node.advance()).empty()) << "said once";
}

TEST(NodeProtocol, TheNewestAgreedStepKeepsItsSlotUntilANewerOneIsAgreed) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  ASSERT_TRUE(node.capture(0));
  node.advance();
  // Rank a has both slots in use, b is behind: no slot for a's next step.
  EXPECT_EQ(node.promise(0)->label, (Label{1, 2}));
  ASSERT_TRUE(node.capture(1));
  node.advance();
  EXPECT_EQ(node->agreed(), (Label{1, 2}));
  EXPECT_EQ(node.promise(0)->label, (Label{1, 3}));
  const std::vector<OwnCopy> copies = node->own_copies("a");
  ASSERT_EQ(copies.size(), 2U);
  EXPECT_EQ(copies[0].label, (Label{1, 2}));
}

TEST(NodeProtocol, ASkipByOneRankFreesTheStepOfAllAndSaysWho) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  ASSERT_TRUE(node.capture(0));
  EXPECT_TRUE(node->skipped("b", {1, 2}, SkipCause::kCancelled));
  EXPECT_FALSE(node->skipped("a", {1, 2}, SkipCause::kDead)) << "known already, and captured";
  const auto effects = node.advance();
  const auto dead = effects_of<StepDead>(effects);
  ASSERT_EQ(dead.size(), 1U);
  EXPECT_EQ(dead[0].label, (Label{1, 2}));
  EXPECT_EQ(dead[0].owner, "b");
  EXPECT_EQ(dead[0].cause, SkipCause::kCancelled);
  EXPECT_EQ(node.promise(0)->label, (Label{1, 3}));
  EXPECT_EQ(node->agreed(), (Label{1, 1})) << "the agreed one stays";
  EXPECT_EQ(node.capture_all(), (Label{1, 3}));
}

TEST(NodeProtocol, AStepThatIsDeadIsNotPromisedToARankThatIsBehind) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node->skipped("a", {1, 1}, SkipCause::kLayout);
  const auto promises = effects_of<PromiseMade>(node.advance());
  ASSERT_EQ(promises.size(), 2U);
  EXPECT_EQ(promises[1].owner, "b");
  EXPECT_EQ(promises[1].label, (Label{1, 2}));
}

TEST(NodeProtocol, AStepThatARankPassedWithoutAWordIsDead) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  ASSERT_TRUE(node.capture(1));
  // Its promise was of step 1.
  EXPECT_FALSE(node->began("a", {1, 3}, 0));
  node.advance();
  EXPECT_TRUE(node->own_copies("b").empty() || node->own_copies("b")[0].label > (Label{1, 3}));
  EXPECT_EQ(node->dead_step_count(), 3U);
  EXPECT_EQ(node.capture_all(), (Label{1, 4})) << "checkpoints go on";
}

TEST(NodeProtocol, ACaptureThatWasNotPromisedIsRefused) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  EXPECT_FALSE(node->began("a", {1, 1}, 7)) << "another slot";
  EXPECT_FALSE(node->began("a", {0, 1}, 0)) << "an older incarnation";
  EXPECT_FALSE(node->began("z", {1, 1}, 0)) << "a stranger";
  EXPECT_FALSE(node->copied("a", {1, 1}, 0)) << "not begun";
}

TEST(NodeProtocol, ADamagedCopyIsForgottenAndItsStepDeadUnlessItWasAgreed) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  const PromiseMade made = *node.promise(0);
  ASSERT_TRUE(node.capture(0));
  node->damaged("a", made.label, made.slot, SkipCause::kFailed);
  EXPECT_EQ(effects_of<StepDead>(node.advance()).size(), 1U);
  ASSERT_EQ(node.capture_all(), (Label{1, 2}));
  const std::uint32_t slot = node->own_copies("a")[0].slot;
  node->damaged("a", {1, 2}, slot, SkipCause::kFailed);
  EXPECT_TRUE(effects_of<StepDead>(node.advance()).empty());
  EXPECT_EQ(node->agreed(), std::nullopt);
}

TEST(NodeProtocol, ANewLayoutGetsNewSlotsAndTheOldOnesEndOnceANewerStepIsAgreed) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  node->skipped("a", {1, 2}, SkipCause::kLayout);
  const auto slots = node->reserve("a", 2, 8192);
  ASSERT_TRUE(slots);
  EXPECT_EQ(*slots, (std::vector<std::uint32_t>{2, 3}));
  const auto effects = node.advance();
  EXPECT_EQ(effects_of<SlotEnded>(effects).size(), 1U) << "the other one holds the agreed step";
  ASSERT_EQ(effects_of<PromiseMade>(effects).size(), 1U);
  EXPECT_EQ(effects_of<PromiseMade>(effects)[0].layout_epoch, 2U);
  EXPECT_EQ(node->agreed(), (Label{1, 1}));
  ASSERT_TRUE(node.capture(0));
  EXPECT_EQ(effects_of<SlotEnded>(node.advance()).size() + effects_of<SlotEnded>(node.advance()).size(), 1U);
  EXPECT_EQ(node->agreed(), (Label{1, 3}));
}

TEST(NodeProtocol, ALayoutOfTheSameSizeKeepsItsSlots) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  const auto slots = node->reserve("a", 9, 4096);
  ASSERT_TRUE(slots);
  EXPECT_EQ(*slots, (std::vector<std::uint32_t>{0, 1}));
  EXPECT_EQ(effects_of<PromiseMade>(node.advance())[0].layout_epoch, 9U);
}

TEST(NodeProtocol, StepsAtTheEndOfTheirRangeAreBorne) {
  ProtocolNode node(1, 1000);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  const std::uint64_t last = std::numeric_limits<std::uint64_t>::max();
  node->skipped("a", {1, last}, SkipCause::kUnknown);
  node->began("a", {1, last - 1}, 0);
  EXPECT_TRUE(effects_of<PromiseMade>(node.advance()).empty());
}

TEST(NodeProtocol, TheJobIsOverWhenEveryRankHasSaidSo) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  EXPECT_FALSE(node->bye("a"));
  EXPECT_FALSE(node->bye("a"));
  EXPECT_TRUE(node->bye("b"));
}

}  // namespace
}  // namespace smon_rt
