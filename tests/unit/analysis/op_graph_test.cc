#include "analysis/op_graph.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "lanes.h"
#include "random_graphs.h"

namespace smon_rt::analysis {
namespace {

using testing::Ops;

Op forward(int seq_id, int stage = 0) {
  return {Kind::kForwardCompute, stage, seq_id, 0, 0, -1};
}

OpGraphBuilder builder_of(int op_count) {
  OpGraphBuilder builder;
  for (int i = 0; i < op_count; ++i) builder.add_op(forward(i));
  return builder;
}

TEST(OpGraph, DescribesAnOpByKindNumberAndStage) {
  EXPECT_EQ(describe({Kind::kForwardRecv, 1, 3, 0, 0, 0}), "forward_recv 3 of stage 1");
}

TEST(OpGraph, KeepsOpsDependenciesAndGroups) {
  OpGraphBuilder builder = builder_of(4);
  builder.add_dependency(1, 0);
  builder.add_dependency(3, 0);
  builder.add_dependency(3, 1);
  builder.add_group({1, 2}, true);
  auto graph = std::move(builder).build();
  ASSERT_TRUE(graph) << graph.error().message;
  EXPECT_EQ(graph->size(), 4u);
  EXPECT_EQ(graph->op(2).seq_id, 2);
  EXPECT_EQ(testing::dependencies_of(*graph, 0), Ops{});
  EXPECT_EQ(testing::dependencies_of(*graph, 1), Ops{0});
  EXPECT_EQ(testing::dependencies_of(*graph, 3), (Ops{0, 1}));
  EXPECT_EQ(testing::group_members(*graph, 2), (Ops{1, 2}));
  EXPECT_TRUE(testing::group_spans_dp(*graph, 1));
  EXPECT_FALSE(graph->is_communication(0));
  EXPECT_EQ(graph->group_of(3), kNoGroup);
}

TEST(OpGraph, KeepsARepeatedEdgeOnce) {
  OpGraphBuilder builder = builder_of(2);
  builder.add_dependency(1, 0);
  builder.add_dependency(1, 0);
  auto graph = std::move(builder).build();
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph->dependencies(1).size(), 1u);
}

TEST(OpGraph, AChainLetsEachWaitForTheOneBefore) {
  OpGraphBuilder builder = builder_of(3);
  const std::vector<OpIndex> chain = {2, 0, 1};
  builder.add_chain(chain);
  auto graph = std::move(builder).build();
  ASSERT_TRUE(graph);
  EXPECT_EQ(testing::dependencies_of(*graph, 2), Ops{});
  EXPECT_EQ(testing::dependencies_of(*graph, 0), Ops{2});
  EXPECT_EQ(testing::dependencies_of(*graph, 1), Ops{0});
  EXPECT_EQ(graph->order(), chain);
}

TEST(OpGraph, AnEmptyGroupAndAnEmptyChainAreNothing) {
  OpGraphBuilder builder = builder_of(1);
  builder.add_group({}, true);
  builder.add_chain({});
  auto graph = std::move(builder).build();
  ASSERT_TRUE(graph);
  EXPECT_TRUE(graph->groups().empty());
}

TEST(OpGraph, AGraphOfNoOpsIsFine) {
  auto graph = OpGraphBuilder().build();
  ASSERT_TRUE(graph);
  EXPECT_EQ(graph->size(), 0u);
  EXPECT_TRUE(graph->order().empty());
}

TEST(OpGraph, ACircleIsNamedOpByOp) {
  OpGraphBuilder builder = builder_of(4);
  builder.add_dependency(1, 0);
  builder.add_dependency(2, 1);
  builder.add_dependency(3, 2);
  builder.add_dependency(1, 3);
  auto graph = std::move(builder).build();
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message,
            "the ops wait for each other in a circle: forward_compute 1 of stage 0 <- forward_compute 3 of stage 0 <- "
            "forward_compute 2 of stage 0 <- forward_compute 1 of stage 0");
}

TEST(OpGraph, OpsThatOnlyWaitForACircleAreNotNamed) {
  OpGraphBuilder builder = builder_of(3);
  builder.add_dependency(0, 1);
  builder.add_dependency(1, 2);
  builder.add_dependency(2, 1);
  auto graph = std::move(builder).build();
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message.find("forward_compute 0"), std::string::npos) << graph.error().message;
  EXPECT_NE(graph.error().message.find("forward_compute 2"), std::string::npos) << graph.error().message;
}

TEST(OpGraph, AnOpThatWaitsForItselfIsACircle) {
  OpGraphBuilder builder = builder_of(2);
  builder.add_dependency(1, 1);
  auto graph = std::move(builder).build();
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message,
            "the ops wait for each other in a circle: forward_compute 1 of stage 0 <- forward_compute 1 of stage 0");
}

TEST(OpGraph, ADeadlockThroughAGroupIsACircle) {
  // Neither transfer can end: each of its members waits for the other transfer's other member.
  OpGraphBuilder builder = builder_of(4);
  builder.add_group({0, 1}, false);
  builder.add_group({2, 3}, false);
  builder.add_dependency(0, 2);
  builder.add_dependency(3, 1);
  auto graph = std::move(builder).build();
  ASSERT_FALSE(graph);
  EXPECT_NE(graph.error().message.find("circle"), std::string::npos) << graph.error().message;
}

TEST(OpGraph, MembersOfOneGroupThatWaitForEachOtherAreACircle) {
  OpGraphBuilder builder = builder_of(2);
  builder.add_group({0, 1}, false);
  builder.add_dependency(1, 0);
  EXPECT_FALSE(std::move(builder).build());
}

TEST(OpGraph, ALongCircleIsNotNamedInFull) {
  OpGraphBuilder builder = builder_of(100);
  for (OpIndex op = 0; op < 100; ++op) builder.add_dependency(op, (op + 1) % 100);
  auto graph = std::move(builder).build();
  ASSERT_FALSE(graph);
  EXPECT_NE(graph.error().message.find("..."), std::string::npos);
  EXPECT_LT(graph.error().message.size(), 400u);
}

TEST(OpGraph, AnOpMayBeInOneGroupOnly) {
  OpGraphBuilder builder = builder_of(3);
  builder.add_group({0, 1}, false);
  builder.add_group({1, 2}, false);
  auto graph = std::move(builder).build();
  ASSERT_FALSE(graph);
  EXPECT_EQ(graph.error().message, "forward_compute 1 of stage 0 belongs to two communication groups");
}

TEST(OpGraph, TheOrderHasEachOpOnceAndAfterAllThatItWaitsFor) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    const OpGraph graph = testing::random_graph(random, 40);
    ASSERT_EQ(graph.order().size(), graph.size());
    std::vector<std::size_t> place(graph.size(), graph.size());
    for (std::size_t i = 0; i < graph.size(); ++i) place[graph.order()[i]] = i;
    for (OpIndex op = 0; op < graph.size(); ++op) {
      ASSERT_LT(place[op], graph.size()) << "op " << op << " is missing";
      for (OpIndex before : graph.dependencies(op)) {
        EXPECT_LT(place[before], place[op]);
        // What it waits for ends only once that one's whole group has started.
        for (OpIndex member : testing::group_members(graph, before)) EXPECT_LT(place[member], place[op]);
      }
    }
  }
}

}  // namespace
}  // namespace smon_rt::analysis
