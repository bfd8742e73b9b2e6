// Fence, list, pin, fetch, go on; and an agent, or a connection, that is a new one while training goes on.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "protocol_node.h"

namespace smon_rt {
namespace {

using agent_messages::SkipCause;

TEST(NodeProtocolRestart, FencesBeforeItListsPinsAndFetches) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  node.attach(0);
  node.attach(1);
  ASSERT_TRUE(node->fence("a", 2));
  EXPECT_FALSE(node->is_all_fenced());
  EXPECT_FALSE(node->pin("a", {1, 1}, {}));
  ASSERT_TRUE(node->fence("b", 2));
  EXPECT_TRUE(node->is_all_fenced());
  EXPECT_FALSE(node->fetch("a", {1, 1})) << "not pinned";
  EXPECT_FALSE(node->go_on("a", 2, 2)) << "not pinned";
  ASSERT_TRUE(node->pin("a", {1, 1}, {}));
  const auto slot = node->fetch("b", {1, 1});
  ASSERT_TRUE(slot);
  EXPECT_TRUE(slot->has_value());
  EXPECT_FALSE(node->fetch("b", {1, 9})) << "another than the pinned one";
  ASSERT_TRUE(node->go_on("a", 2, 2));
  ASSERT_TRUE(node->go_on("b", 2, 2));
  EXPECT_EQ(node.capture_all(), (Label{2, 2}));
}

TEST(NodeProtocolRestart, WritersOfAnOlderIncarnationAreRefused) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  const PromiseMade late = *node.promise(1);
  ASSERT_TRUE(node->began(late.owner, late.label, late.slot));
  ASSERT_TRUE(node.restart(2, kInitialState));
  EXPECT_FALSE(node->copied(late.owner, late.label, late.slot));
  EXPECT_FALSE(node->began(late.owner, {1, 2}, late.slot));
  EXPECT_FALSE(node->skipped(late.owner, {1, 2}, SkipCause::kCancelled));
  EXPECT_FALSE(node->fence("b", 1));
  EXPECT_FALSE(node->fence("b", 2)) << "it has gone on";
}

TEST(NodeProtocolRestart, ASlotThatALivingTrainerMayWriteIntoIsGivenUp) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node.advance();
  const PromiseMade dead = *node.promise(0);
  const PromiseMade late = *node.promise(1);
  ASSERT_TRUE(node->began(dead.owner, dead.label, dead.slot));
  ASSERT_TRUE(node->began(late.owner, late.label, late.slot));
  node->trainer_gone("a");
  ASSERT_TRUE(node.restart(2, kInitialState));
  const auto ended = effects_of<SlotEnded>(node.advance());
  ASSERT_EQ(ended.size(), 1U) << "the dead one's can be used again";
  EXPECT_EQ(ended[0].owner, "b");
  EXPECT_EQ(ended[0].slot, late.slot);
  EXPECT_NE(node.promise(1)->slot, late.slot);
}

TEST(NodeProtocolRestart, GoingOnForgetsAllButWhatIsKept) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  ASSERT_TRUE(node.capture(0));
  ASSERT_EQ(node->own_copies("a").size(), 2U);
  ASSERT_TRUE(node.restart(2, {1, 1}));
  EXPECT_EQ(node->own_copies("a").size(), 1U) << "step 2, which rank b never had";
  EXPECT_EQ(node->agreed(), (Label{1, 1}));
}

TEST(NodeProtocolRestart, NothingIsFreedFromTheFenceToGoingOn) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  const PromiseMade made = *node.promise(0);
  ASSERT_TRUE(node->began(made.owner, made.label, made.slot) && node->copied(made.owner, made.label, made.slot));
  node.attach(0);
  ASSERT_TRUE(node->fence("a", 2));
  ASSERT_TRUE(node->hashed(made.owner, made.label, made.slot)) << "what is complete is hashed all the same";
  ASSERT_TRUE(node->pin("a", {1, 2}, {}));
  node.advance();
  // Step 2 turns out to be unreadable: step 1 has to be there still.
  ASSERT_TRUE(node->pin("a", {1, 1}, {}));
  EXPECT_TRUE(node->fetch("a", {1, 1}).value().has_value());
}

TEST(NodeProtocolRestart, NothingIsPromisedIntoSlotsThatOnlyAnEarlierTrainerHas) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  node->trainer_gone("a");
  node->attach({"a", 1, 1, 1, 2});
  ASSERT_TRUE(node->fence("a", 2) && node->pin("a", kInitialState, {}) && node->go_on("a", 2, 1));
  EXPECT_TRUE(effects_of<PromiseMade>(node.advance()).empty()) << "it cannot write there: each would be a skipped step";
  ASSERT_TRUE(node->reserve("a", 1, 4096));
  EXPECT_EQ(effects_of<PromiseMade>(node.advance()).size(), 1U);
}

TEST(NodeProtocolRestart, ATrainersDeathOnTheWayEndsTheRecovery) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  for (const std::size_t rank : {0U, 1U}) {
    node.attach(rank);
    ASSERT_TRUE(node->fence(ProtocolNode::owner(rank), 2));
  }
  ASSERT_TRUE(node->pin("a", {1, 1}, {}));
  node->trainer_gone("b");
  EXPECT_FALSE(node->go_on("a", 2, 2));
  ASSERT_TRUE(node.restart(3, {1, 1}));
  EXPECT_EQ(node.capture_all(), (Label{3, 2}));
}

TEST(NodeProtocolRestart, RanksThatAreNotOfTheJobAnyMoreAreForgotten) {
  ProtocolNode node(3);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  for (const char* const owner : {"a", "b"}) {
    node->attach({owner, 2, 2, 1, 2});
    ASSERT_TRUE(node->fence(owner, 2));
  }
  ASSERT_TRUE(node->is_all_fenced());
  ASSERT_TRUE(node->pin("a", {1, 1}, {}));
  ASSERT_TRUE(node->go_on("a", 2, 2));
  EXPECT_EQ(node->owners(), (std::vector<std::string>{"a", "b"}));
  const auto ended = effects_of<SlotEnded>(node.advance());
  EXPECT_EQ(std::ranges::count(ended, "c", &SlotEnded::owner), 2);
}

TEST(NodeProtocolRestart, ANewAgentTakesTheSlotsOfTrainersThatRun) {
  ProtocolNode node(2);
  const std::vector<AdoptedSlot> slots{{0, Label{4, 7}}, {1, std::nullopt}};
  for (const char* const owner : {"a", "b"}) {
    node->attach({owner, 2, 2, 1, 2});
    ASSERT_TRUE(node->adopt(owner, 3, 4096, slots));
    EXPECT_FALSE(node->adopt(owner, 3, 4096, slots)) << "twice";
    ASSERT_TRUE(node->go_on(owner, 4, 8));
  }
  EXPECT_EQ(node->incarnation(), 4U);
  EXPECT_EQ(node->agreed(), (Label{4, 7}));
  node.advance();
  EXPECT_EQ(node.promise(0)->label, (Label{4, 8}));
  EXPECT_EQ(node.promise(0)->slot, 1U);
  EXPECT_EQ(node.promise(0)->layout_epoch, 3U);
}

TEST(NodeProtocolRestart, ATrainerThatConnectsAgainGoesOnInItsIncarnationOnly) {
  ProtocolNode node(2);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  node.attach(0);
  EXPECT_FALSE(node->go_on("a", 2, 3));
  ASSERT_TRUE(node->go_on("a", 1, 3));
  EXPECT_EQ(effects_of<StepDead>(node.advance()).size(), 1U) << "step 2, of which it lost the promise";
  EXPECT_EQ(node.capture_all(), (Label{1, 3}));
}

TEST(NodeProtocolRestart, ARejectedStateIsMarkedAndNotAgreed) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  EXPECT_TRUE(node->reject({1, 1}, "loss is NaN"));
  EXPECT_FALSE(node->reject({1, 1}, "again"));
  EXPECT_EQ(node->tried().reason({1, 1}), "loss is NaN");
  EXPECT_EQ(effects_of<StateTried>(node.advance()).size(), 1U);
  EXPECT_EQ(node->agreed(), std::nullopt);
}

TEST(NodeProtocolRestart, AStateThatIsLoadedAgainAndAgainWithoutANewerOneCountsAsTried) {
  ProtocolNode node(1);
  ASSERT_TRUE(node.restart(1, kInitialState));
  ASSERT_EQ(node.capture_all(), (Label{1, 1}));
  const std::uint32_t max_loads = NodeProtocolOptions{}.max_loads;
  for (std::uint32_t load = 0; load < max_loads; ++load) {
    ASSERT_TRUE(node.restart(2 + load, {1, 1}));
    EXPECT_FALSE(node->tried().contains({1, 1})) << "it may yet work";
  }
  node.attach(0);
  ASSERT_TRUE(node->fence("a", 2 + max_loads));
  EXPECT_TRUE(node->tried().contains({1, 1}));
  EXPECT_EQ(effects_of<StateTried>(node.advance()).size(), 1U);
}

}  // namespace
}  // namespace smon_rt
