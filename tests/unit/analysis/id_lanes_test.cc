#include "analysis/id_lanes.h"

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
using testing::ColumnStore;
using testing::IdRows;
using testing::layout_of;
using testing::Row;

Result<IdLanes> build(const std::vector<Row>& rows, const JobLayout& layout) {
  const ColumnStore store(rows);
  auto valid = validate_columns(store.view(), layout);
  EXPECT_TRUE(valid) << valid.error().message;
  return build_id_lanes(store.full_view(), layout);
}

// Forward and backward of each microbatch one after the other, then the optimizer.
void add_step(IdRows& made, At at, int microbatches) {
  std::int64_t now = 1000 * at.step;
  for (int i = 0; i < microbatches; ++i) {
    made.compute(at, Kind::kForwardCompute, i, now, now + 10);
    made.compute(at, Kind::kBackwardCompute, i, now + 10, now + 30);
    now += 30;
  }
  made.add(at, Kind::kOptimizer, now, now + 5);
}

TEST(IdLanes, AnOpIsWhatHasTheSameIdsWhateverItsNumber) {
  IdRows made;
  for (std::int64_t step : {0, 1}) add_step(made, {0, 0, step}, 2);
  // The second step lost its first forward: the numbers of the others shift, their ids do not.
  std::erase_if(made.rows, [](const Row& row) {
    return row.step == 1 && row.kind == Kind::kForwardCompute && row.microbatch == 0;
  });
  for (Row& row : made.rows) {
    if (row.step == 1 && row.kind == Kind::kForwardCompute) row.seq_id = 0;
  }
  auto lanes = build(made.rows, layout_of(1, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_EQ(lanes->table.op_count(), 5u);
  EXPECT_EQ(lanes->absent_op_count, 1);
  const Op& first = lanes->table.template_ops()[0].op;
  EXPECT_EQ(describe(first), "forward_compute 0 of stage 0");
  EXPECT_EQ(first.microbatch, 0);
  EXPECT_TRUE(lanes->table.recorded().has(0, 0));
  EXPECT_FALSE(lanes->table.recorded().has(0, 1));
  // A step begins with its first recorded op.
  EXPECT_EQ(lanes->table.step_times_ns(), (std::vector<double>{65'000, 55'000}));
}

// Four collectives a step in two communicators; a lane lost the first of one.
TEST(IdLanes, ALostCollectiveDoesNotShiftTheOthersOfItsCommunicator) {
  IdRows made;
  for (int dp_rank : {0, 1}) {
    add_step(made, {dp_rank, 0, 0}, 1);
    for (int i = 0; i < 4; ++i) {
      if (dp_rank == 1 && i == 0) continue;
      Row& row = made.add({dp_rank, 0, 0}, Kind::kCollective, 40 + i, 41 + i, -1, -1, i);
      row.communicator = i % 2;
      row.communicator_number = i / 2;
    }
  }
  auto lanes = build(made.rows, layout_of(2, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_TRUE(lanes->left_out_steps.empty());
  EXPECT_EQ(lanes->table.op_count(), 3u + 4u);
  EXPECT_EQ(lanes->absent_op_count, 1);
  // The lost one's partner is alone; each of the others still has its own.
  ASSERT_EQ(lanes->groups.size(), 3u);
  for (const Group& group : lanes->groups) {
    EXPECT_EQ(group.members.size(), 1u);
    EXPECT_TRUE(group.spans_dp);
  }
}

TEST(IdLanes, MicrobatchCountsMayDifferBetweenStepsAndDpRanks) {
  IdRows made;
  for (std::int64_t step : {0, 1, 2}) {
    add_step(made, {0, 0, step}, 1 + static_cast<int>(step));
    add_step(made, {1, 0, step}, 2);
  }
  auto lanes = build(made.rows, layout_of(2, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_TRUE(lanes->left_out_steps.empty());
  EXPECT_EQ(lanes->table.op_count(), 7u);
  EXPECT_EQ(lanes->absent_op_count, 4 + 2 + 0 + 3 * 2);
}

TEST(IdLanes, ACollectionMayHappenAnywhereWithoutContradictingItself) {
  IdRows made;
  for (std::int64_t step : {0, 1, 2}) add_step(made, {0, 0, step}, 3);
  made.add({0, 0, 0}, Kind::kGc, 40, 45);
  made.add({0, 0, 1}, Kind::kGc, 1080, 1085);
  auto lanes = build(made.rows, layout_of(1, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_TRUE(lanes->left_out_steps.empty());
  EXPECT_EQ(lanes->table.op_count(), 9u);
  EXPECT_EQ(lanes->absent_op_count, 0) << "work of the host is not missed";
}

TEST(IdLanes, AStepWhoseComputesRunInAnotherOrderIsLeftOutAndSaid) {
  IdRows made;
  for (std::int64_t step : {3, 4, 5}) add_step(made, {0, 0, step}, 2);
  for (Row& row : made.rows) {
    if (row.step != 3) continue;
    if (row.kind == Kind::kForwardCompute && row.microbatch == 1) row.start_ns = 3'011'000;
    if (row.kind == Kind::kBackwardCompute && row.microbatch == 0) row.start_ns = 3'022'000;
  }
  auto lanes = build(made.rows, layout_of(1, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_EQ(lanes->table.steps(), (std::vector<std::int64_t>{4, 5}));
  ASSERT_EQ(lanes->left_out_steps.size(), 1u);
  EXPECT_EQ(lanes->left_out_steps[0].step, 3);
  EXPECT_EQ(lanes->left_out_steps[0].reason,
            "forward_compute of microbatch 1, chunk 0 on stage 0 runs before backward_compute of microbatch 0, chunk 0 "
            "on stage 0, in most steps after it");
}

TEST(IdLanes, AStepThatNoWorkerFinishedIsLeftOut) {
  IdRows made;
  for (std::int64_t step : {0, 1}) add_step(made, {0, 0, step}, 2);
  std::erase_if(made.rows, [](const Row& row) { return row.step == 1 && row.kind == Kind::kOptimizer; });
  auto lanes = build(made.rows, layout_of(1, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_EQ(lanes->table.steps(), std::vector<std::int64_t>{0});
  ASSERT_EQ(lanes->left_out_steps.size(), 1u);
  EXPECT_EQ(lanes->left_out_steps[0].reason, "no worker has an optimizer in it, but in other steps");
}

TEST(IdLanes, AJobWithoutOptimizersKeepsAllItsSteps) {
  IdRows made;
  for (std::int64_t step : {0, 1}) add_step(made, {0, 0, step}, 2);
  std::erase_if(made.rows, [](const Row& row) { return row.kind == Kind::kOptimizer; });
  auto lanes = build(made.rows, layout_of(1, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_EQ(lanes->table.steps().size(), 2u);
}

TEST(IdLanes, AWorkerWithoutAnyOpHasNoRank) {
  IdRows made;
  for (std::int64_t step : {0, 1}) {
    for (At at : {At{0, 0, step}, At{0, 1, step}, At{1, 1, step}}) add_step(made, at, 2);
  }
  auto lanes = build(made.rows, layout_of(2, 2));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_EQ(lanes->table.worker_ranks(), (std::vector<std::int32_t>{0, 100, -1, 101}));
  EXPECT_EQ(lanes->absent_op_count, 2 * 5);
}

TEST(IdLanes, AStepBeginsWhenItsWorkersBeganItWhereThatIsKnown) {
  IdRows made;
  add_step(made, {0, 0, 1}, 1);
  const ColumnStore store(made.rows);
  OpColumns columns = store.view();
  const std::vector<std::int64_t> step_start_ns(made.rows.size(), 990'000);
  columns.step_start_ns = step_start_ns;
  auto lanes = build_id_lanes(columns, layout_of(1, 1));
  ASSERT_TRUE(lanes);
  EXPECT_EQ(lanes->table.starts_ns(0)[0], 10'000);
  EXPECT_EQ(lanes->table.step_times_ns(), std::vector<double>{45'000});
}

// Two workers that meet at the end of each step, of which one goes on late now and then: 100 us a step, and 20 in all
// for who was late. Step 7 comes after a pause.
TEST(IdLanes, WhoEndsAStepLateAndMakesTheOthersWaitInTheNextCountsOnce) {
  IdRows made;
  std::vector<std::int64_t> step_start_us;
  const auto add = [&](int dp_rank, std::int64_t step, std::int64_t begin, std::int64_t end) {
    made.compute({dp_rank, 0, step}, Kind::kForwardCompute, 0, begin + 5, end);
    step_start_us.push_back(begin);
  };
  add(0, 1, 0, 100), add(1, 1, 0, 120);
  add(0, 2, 100, 220), add(1, 2, 120, 220);
  add(0, 3, 230, 330), add(1, 3, 232, 330);
  add(0, 7, 800, 900), add(1, 7, 810, 900);
  std::vector<std::int64_t> step_start_ns;
  for (std::int64_t time : step_start_us) step_start_ns.push_back(1000 * time);
  const ColumnStore store(made.rows);
  OpColumns columns = store.view();
  columns.step_start_ns = step_start_ns;
  auto lanes = build_id_lanes(columns, layout_of(2, 1));
  ASSERT_TRUE(lanes);
  // The first: until 100 and 120. The second: until the next begins at 230 and 232, less the 10 in which both were
  // between the two. The third, by its ends: from 220 to 330 less the same 10. The last, alone: the longest.
  EXPECT_EQ(lanes->table.step_times_ns(), (std::vector<double>{110'000, 111'000, 100'000, 100'000}));
}

// One send a step from stage 0 to stage 1, with the group ids given.
std::vector<Row> two_stages(int steps) {
  IdRows made;
  for (std::int64_t step = 0; step < steps; ++step) {
    add_step(made, {0, 0, step}, 2);
    add_step(made, {0, 1, step}, 2);
    for (int i : {0, 1}) {
      made.add({0, 0, step}, Kind::kForwardSend, 1000 * step + 10 + 30 * i, 1000 * step + 12 + 30 * i, i, 0, 7 + i);
      made.add({0, 1, step}, Kind::kForwardRecv, 1000 * step + 10 + 30 * i, 1000 * step + 12 + 30 * i, i, 0, 7 + i);
    }
  }
  return made.rows;
}

TEST(IdLanes, OpsOfOneGroupIdAreAGroupWhateverTheNumber) {
  std::vector<Row> rows = two_stages(3);
  for (Row& row : rows) row.group_id = row.group_id < 0 ? -1 : row.group_id * 10 + row.step;
  auto lanes = build(rows, layout_of(1, 2));
  ASSERT_TRUE(lanes) << lanes.error().message;
  ASSERT_EQ(lanes->groups.size(), 2u);
  for (const Group& group : lanes->groups) {
    EXPECT_EQ(group.members.size(), 2u);
    EXPECT_FALSE(group.spans_dp);
  }
}

TEST(IdLanes, AStepWhoseTransfersPairUpOtherwiseIsLeftOut) {
  std::vector<Row> rows = two_stages(3);
  for (Row& row : rows) {
    if (row.step == 1 && row.kind == Kind::kForwardRecv) row.group_id = row.group_id == 7 ? 8 : 7;
  }
  auto lanes = build(rows, layout_of(1, 2));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_EQ(lanes->table.steps(), (std::vector<std::int64_t>{0, 2}));
  ASSERT_EQ(lanes->left_out_steps.size(), 1u);
  EXPECT_NE(lanes->left_out_steps[0].reason.find("forward_send of microbatch"), std::string::npos)
      << lanes->left_out_steps[0].reason;
}

TEST(IdLanes, AnOpWithoutAPartnerContradictsNobody) {
  std::vector<Row> rows = two_stages(3);
  for (Row& row : rows) {
    if (row.step == 1 && row.kind == Kind::kForwardRecv && row.microbatch == 0) row.group_id = -1;
  }
  auto lanes = build(rows, layout_of(1, 2));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_TRUE(lanes->left_out_steps.empty());
  EXPECT_EQ(lanes->groups.size(), 2u);
}

// An all-reduce in each of four dp ranks; group_of says with whom.
std::vector<Row> reductions(int steps, std::int64_t (*group_of)(int dp_rank, std::int64_t step)) {
  IdRows made;
  for (std::int64_t step = 0; step < steps; ++step) {
    for (int dp : {0, 1, 2, 3}) {
      add_step(made, {dp, 0, step}, 1);
      made.add({dp, 0, step}, Kind::kGradsAllReduce, 1000 * step + 29, 1000 * step + 30, -1, -1, group_of(dp, step));
    }
  }
  return made.rows;
}

TEST(IdLanes, AGroupOfAllDpRanksSpansThemEvenWhereOneIsLost) {
  std::vector<Row> rows = reductions(2, [](int, std::int64_t) { return std::int64_t{3}; });
  std::erase_if(rows,
                [](const Row& row) { return row.step == 1 && row.dp_rank == 2 && row.kind == Kind::kGradsAllReduce; });
  auto lanes = build(rows, layout_of(4, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_TRUE(lanes->left_out_steps.empty());
  ASSERT_EQ(lanes->groups.size(), 1u);
  EXPECT_TRUE(lanes->groups[0].spans_dp);
}

TEST(IdLanes, AGroupOverSomeDpRanksOnlyIsAGroupOfParts) {
  std::vector<Row> rows =
      reductions(3, [](int dp_rank, std::int64_t) { return std::int64_t{dp_rank == 1 || dp_rank == 3}; });
  // One lost a member, one lost a whole part.
  std::erase_if(rows, [](const Row& row) {
    if (row.kind != Kind::kGradsAllReduce) return false;
    return (row.step == 0 && row.dp_rank == 3) || (row.step == 1 && row.group_id == 1);
  });
  auto lanes = build(rows, layout_of(4, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  EXPECT_TRUE(lanes->left_out_steps.empty());
  ASSERT_EQ(lanes->groups.size(), 1u);
  EXPECT_TRUE(lanes->groups[0].spans_dp);
  EXPECT_EQ(lanes->groups[0].dp_part, (std::vector<std::uint32_t>{0, 1, 0, 1}));
}

TEST(IdLanes, AStepThatJoinsTwoPartsIsLeftOut) {
  auto lanes = build(
      reductions(3, [](int dp_rank, std::int64_t step) { return std::int64_t{step == 1 ? dp_rank % 2 : dp_rank / 2}; }),
      layout_of(4, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  ASSERT_EQ(lanes->left_out_steps.size(), 1u);
  EXPECT_EQ(lanes->left_out_steps[0].step, 1);
  EXPECT_NE(lanes->left_out_steps[0].reason.find("over other dp ranks"), std::string::npos);
}

TEST(IdLanes, AStepThatReducesOverOtherRanksThanMostIsLeftOut) {
  auto lanes =
      build(reductions(3, [](int dp_rank, std::int64_t step) { return std::int64_t{step == 2 ? dp_rank / 2 : 0}; }),
            layout_of(4, 1));
  ASSERT_TRUE(lanes) << lanes.error().message;
  ASSERT_EQ(lanes->left_out_steps.size(), 1u);
  EXPECT_EQ(lanes->left_out_steps[0].step, 2);
  ASSERT_EQ(lanes->groups.size(), 1u);
}

TEST(IdLanes, RowOrderDoesNotMatter) {
  std::vector<Row> rows = two_stages(3);
  auto expected = build(rows, layout_of(1, 2));
  std::reverse(rows.begin(), rows.end());
  auto lanes = build(rows, layout_of(1, 2));
  ASSERT_TRUE(expected && lanes);
  ASSERT_EQ(lanes->table.op_count(), expected->table.op_count());
  for (OpIndex op = 0; op < lanes->table.op_count(); ++op) {
    EXPECT_EQ(describe(lanes->table.template_ops()[op].op), describe(expected->table.template_ops()[op].op));
    EXPECT_EQ(lanes->table.starts_ns(op)[0], expected->table.starts_ns(op)[0]);
  }
}

TEST(IdLanes, WhatIsNoJobIsRefused) {
  const std::vector<Row> rows = two_stages(1);
  auto too_many = build(rows, layout_of(40, 2));
  ASSERT_FALSE(too_many);
  EXPECT_NE(too_many.error().message.find("80 workers"), std::string::npos) << too_many.error().message;

  IdRows spans;
  spans.add({}, Kind::kStep, 0, 10);
  auto nothing = build(spans.rows, layout_of(1, 1));
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().message, "no row is an op: all are spans about others (step, startup, metric)");
}

TEST(IdLanes, StepsThatHaveNothingInCommonAreRefusedBeforeTheyFillTheMemory) {
  IdRows made;
  for (std::int64_t step = 0; step < 9000; ++step) {
    Row row{Kind::kForwardCompute, 0, 0, 0, step};
    row.microbatch = static_cast<std::int32_t>(step);
    row.duration_ns = 1;
    made.rows.push_back(row);
  }
  auto lanes = build(made.rows, layout_of(1, 1));
  ASSERT_FALSE(lanes);
  EXPECT_NE(lanes.error().message.find("too little in common"), std::string::npos) << lanes.error().message;
}

}  // namespace
}  // namespace smon_rt::analysis
