#include "analysis/lane_choice.h"

#include <gtest/gtest.h>

#include <vector>

#include "analysis/what_if_question.h"

namespace smon_rt::analysis {
namespace {

constexpr std::size_t kDpSize = 4;

// A compute, then a collective: one that joins dp ranks 0 with 1 and 2 with 3, or all of them.
OpGraph graph_with_parts(const std::vector<std::uint32_t>& dp_part) {
  OpGraphBuilder builder;
  Op compute, collective;
  compute.kind = Kind::kForwardCompute;
  collective.kind = Kind::kGradsReduceScatter;
  const OpIndex first = builder.add_op(compute);
  const OpIndex second = builder.add_op(collective);
  builder.add_dependency(second, first);
  builder.add_group(Group{{second}, true, dp_part});
  builder.end_step_with_any_op();
  return std::move(builder).build().value();
}

// Computes take 1, 2, … ns by dp rank, ten times as long in the second step; collectives 100 ns.
OpTiming timing_of(const OpGraph& graph) {
  OpTiming timing;
  timing.lane_count = 2 * kDpSize;
  timing.durations_ns = LaneBuffer(graph.size() * timing.lane_count);
  timing.launch_delays_ns = LaneBuffer(graph.size() * timing.lane_count);
  for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
    const double step_factor = lane < kDpSize ? 1 : 10;
    timing.durations_ns.data()[lane] = step_factor * static_cast<double>(1 + lane % kDpSize);
    timing.durations_ns.data()[timing.lane_count + lane] = 100;
    timing.launch_delays_ns.data()[lane] = 0;
    timing.launch_delays_ns.data()[timing.lane_count + lane] = 0;
  }
  return timing;
}

struct Job {
  explicit Job(const std::vector<std::uint32_t>& dp_part)
      : graph(graph_with_parts(dp_part)), timing(timing_of(graph)), what_if(graph, timing, kDpSize, 1) {}

  OpGraph graph;
  OpTiming timing;
  WhatIf what_if;
};

TEST(LaneChoice, RanksThatStayCommunicateWithWhomTheyDid) {
  const Job job({0, 0, 1, 1});
  const std::vector<std::size_t> kept = {0, 2, 3};
  const OpGraph graph = graph_of_dp_ranks(job.graph, kept).value();
  EXPECT_EQ(graph.groups().front().dp_part, (std::vector<std::uint32_t>{0, 1, 1}));
  EXPECT_TRUE(graph.groups().front().spans_dp);
  EXPECT_FALSE(graph.step_ends_with_optimizer());
  EXPECT_TRUE(graph_of_dp_ranks(job.graph, {3}).value().groups().front().dp_part.empty());
  EXPECT_FALSE(joins_all_dp_ranks(job.graph));
  EXPECT_TRUE(joins_all_dp_ranks(Job({}).graph));
}

TEST(LaneChoice, StepsOfSomeRanksTakeAsLongAsTheSlowestOfThem) {
  const Job job({});
  const std::vector<std::size_t> kept = {0, 2};
  const OpGraph graph = graph_of_dp_ranks(job.graph, kept).value();
  const Scenario recorded = job.what_if.recorded();
  EXPECT_EQ(replay_lanes(job.what_if, recorded, graph, choose_dp_ranks(job.what_if, kept)),
            (std::vector<double>{103, 130}));
}

TEST(LaneChoice, ALaneAloneWaitsForNobody) {
  const Job job({0, 0, 1, 1});
  EXPECT_EQ(own_lane_ns(job.what_if, job.what_if.recorded()),
            (std::vector<double>{101, 102, 103, 104, 110, 120, 130, 140}));
}

TEST(LaneChoice, DrawnRanksRunAnotherStepAtThePaceOfTheirOwn) {
  const Job job({});
  const std::vector<std::size_t> all = {0, 1, 2, 3};
  const LaneChoice choice = draw_dp_ranks(job.what_if, job.what_if.recorded(), all, 64, 1);
  ASSERT_EQ(choice.lanes.size(), 2U * 64U);
  bool saw_another_step = false;
  for (std::size_t i = 0; i < choice.lanes.size(); ++i) {
    const std::size_t step = i / 64;
    const std::size_t from = choice.lanes[i] / kDpSize;
    if (i % 64 < kDpSize) {
      EXPECT_EQ(choice.lanes[i], step * kDpSize + i % 64);
    } else {
      // For good the same rank.
      EXPECT_EQ(choice.lanes[i] % kDpSize, choice.lanes[i % 64] % kDpSize);
    }
    saw_another_step = saw_another_step || from != step;
    EXPECT_DOUBLE_EQ(choice.compute_factors[i], from == step ? 1.0 : from == 0 ? 10.0 : 0.1);
  }
  EXPECT_TRUE(saw_another_step);
  // So the step stays what its slowest measured rank makes it.
  const OpGraph graph = graph_of_dp_ranks(job.graph, all).value();
  EXPECT_EQ(replay_lanes(job.what_if, job.what_if.recorded(), graph, choice), (std::vector<double>{104, 140}));
}

TEST(LaneChoice, RanksAreNotDrawnWhereCollectivesJoinOnlySome) {
  const Job job({0, 0, 1, 1});
  Question more, fewer, dropped;
  more.dp_count = 8;
  fewer.dp_count = 2;
  dropped.dropped_dp_count = 1;
  for (const Question& question : {more, fewer}) {
    const auto refused = ask(job.what_if, {}, {question});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().message,
              "some collectives join only a part of the dp ranks: where drawn ones would belong is not known");
  }
  const auto answers = ask(job.what_if, {}, {dropped});
  ASSERT_TRUE(answers.has_value());
  EXPECT_EQ(answers->front().after_ns, (std::vector<double>{103, 130}));
}

}  // namespace
}  // namespace smon_rt::analysis
