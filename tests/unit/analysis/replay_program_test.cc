#include "analysis/replay_program.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "random_graphs.h"

namespace smon_rt::analysis {
namespace {

using Action = ReplayProgram::Action;

OpGraphBuilder builder_of(std::initializer_list<Kind> kinds) {
  OpGraphBuilder builder;
  for (Kind kind : kinds) builder.add_op({kind, 0, 0, 0, 0, -1});
  return builder;
}

std::vector<Action> actions_of(const ReplayProgram& program) {
  std::vector<Action> actions;
  for (const ReplayProgram::Instruction& instruction : program.instructions) actions.push_back(instruction.action);
  return actions;
}

TEST(ReplayProgram, AnOpInNoGroupRuns) {
  const OpGraph graph = builder_of({Kind::kForwardCompute}).build().value();
  EXPECT_EQ(actions_of(compile(graph)), std::vector<Action>{Action::kRun});
}

TEST(ReplayProgram, AGroupOfOneRunsUnlessItSpansDp) {
  OpGraphBuilder alone = builder_of({Kind::kForwardRecv});
  alone.add_group({0}, false);
  EXPECT_EQ(actions_of(compile(std::move(alone).build().value())), std::vector<Action>{Action::kRun});
  OpGraphBuilder spanning = builder_of({Kind::kParamsAllGather});
  spanning.add_group({0}, true);
  const ReplayProgram program = compile(std::move(spanning).build().value());
  EXPECT_EQ(actions_of(program), (std::vector<Action>{Action::kStart, Action::kComplete}));
  EXPECT_TRUE(program.instructions[1].spans_dp);
}

TEST(ReplayProgram, AGroupCompletesWhenAllItsMembersHaveStarted) {
  OpGraphBuilder builder = builder_of({Kind::kForwardSend, Kind::kForwardCompute, Kind::kForwardRecv});
  builder.add_group({0, 2}, false);
  builder.add_dependency(2, 1);
  const ReplayProgram program = compile(std::move(builder).build().value());
  EXPECT_EQ(actions_of(program),
            (std::vector<Action>{Action::kStart, Action::kRun, Action::kStart, Action::kComplete}));
  const auto members = program.members_of(program.instructions.back());
  ASSERT_EQ(members.size(), 2u);
  EXPECT_EQ(members[0].slot, program.instructions[0].target);
  EXPECT_EQ(members[1].slot, program.instructions[2].target);
}

TEST(ReplayProgram, OptimizersEndTheStepAndOpsThatNothingWaitsForAreSinks) {
  OpGraphBuilder builder = builder_of({Kind::kForwardCompute, Kind::kOptimizer, Kind::kGc});
  builder.add_dependency(1, 0);
  const ReplayProgram program = compile(std::move(builder).build().value());
  EXPECT_EQ(program.ends_step, (std::vector<bool>{false, true, false}));
  EXPECT_EQ(program.is_sink, (std::vector<bool>{false, true, true}));
}

TEST(ReplayProgram, AChainNeedsTwoSlotsHoweverLong) {
  OpGraphBuilder builder;
  for (int i = 0; i < 100; ++i) builder.add_op({Kind::kForwardCompute, 0, i, 0, 0, -1});
  for (OpIndex op = 1; op < 100; ++op) builder.add_dependency(op, op - 1);
  EXPECT_EQ(compile(std::move(builder).build().value()).slot_count, 2u);
}

// Each slot must hold the end of the op that it is read for, and nobody may write it before its last reader.
TEST(ReplayProgram, ASlotIsNeverReusedBeforeItsLastReader) {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    const OpGraph graph = testing::random_graph(random, 60);
    const ReplayProgram program = compile(graph);
    std::vector<OpIndex> owner(program.slot_count, kNoGroup);
    std::set<OpIndex> ended;
    for (const ReplayProgram::Instruction& instruction : program.instructions) {
      if (instruction.action == Action::kComplete) {
        for (const ReplayProgram::Member& member : program.members_of(instruction)) {
          ASSERT_EQ(owner[member.slot], member.op);
          ended.insert(member.op);
        }
        continue;
      }
      std::vector<OpIndex> read;
      for (std::uint32_t slot : program.operands_of(instruction)) {
        ASSERT_NE(slot, instruction.target);
        ASSERT_TRUE(ended.contains(owner[slot]));
        read.push_back(owner[slot]);
      }
      const auto expected = graph.dependencies(instruction.op);
      ASSERT_TRUE(std::is_permutation(read.begin(), read.end(), expected.begin(), expected.end()));
      owner[instruction.target] = instruction.op;
      if (instruction.action == Action::kRun) ended.insert(instruction.op);
    }
    ASSERT_EQ(ended.size(), graph.size());
  }
}

}  // namespace
}  // namespace smon_rt::analysis
