#include "analysis/simulator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "random_graphs.h"

namespace smon_rt::analysis {
namespace {

using testing::NaiveReplay;

Scenario scenario_of(const std::vector<double>& durations, const std::vector<double>& delays, std::size_t op_count) {
  Scenario scenario;
  scenario.durations = testing::rows_of(durations, op_count);
  if (!delays.empty()) scenario.launch_delays = testing::rows_of(delays, op_count);
  return scenario;
}

// Compute, all-gather over dp, optimizer; dp ranks 0 and 1.
OpGraph small_graph() {
  OpGraphBuilder builder;
  builder.add_op({Kind::kForwardCompute, 0, 0, 0, 0, 0});
  builder.add_op({Kind::kParamsAllGather, 0, 0, 0, 0, 0});
  builder.add_op({Kind::kOptimizer, 0, 0, 0, 0, 0});
  builder.add_op({Kind::kGc, 0, 0, 0, 0, 0});
  builder.add_dependency(1, 0);
  builder.add_dependency(2, 1);
  builder.add_group({1}, true);
  return std::move(builder).build().value();
}

TEST(Simulator, AStepEndsWithItsLastOptimizerAndItsLastOp) {
  const OpGraph graph = small_graph();
  const Simulator simulator(graph, 2, 1);
  //                                       compute  gather  optimizer  gc
  const std::vector<double> durations = {10, 30, 5, 6, 1, 2, 100, 3};
  const StepEnds ends = simulator.replay(scenario_of(durations, {}, 4));
  EXPECT_EQ(ends.optimizer, std::vector<double>{30 + 6 + 2});
  EXPECT_EQ(ends.last, std::vector<double>{100});
}

TEST(Simulator, LaunchDelaysHoldBackTheStartNotTheTransfer) {
  const OpGraph graph = small_graph();
  const Simulator simulator(graph, 2, 1);
  const std::vector<double> durations = {10, 30, 5, 6, 1, 2, 0, 0};
  const std::vector<double> delays = {0, 0, 50, 7, 0, 4, 0, 0};
  const StepEnds ends = simulator.replay(scenario_of(durations, delays, 4));
  EXPECT_EQ(ends.optimizer, std::vector<double>{60 + 6 + 4 + 2});
}

TEST(Simulator, AConstantStandsForAllLanesAndAMaskForSome) {
  const OpGraph graph = small_graph();
  const Simulator simulator(graph, 2, 2);
  const std::vector<double> computes = {10, 20, 30, 40};
  const std::vector<std::uint64_t> first_rank = {~std::uint64_t{0}, 0, ~std::uint64_t{0}, 0};
  Scenario scenario;
  scenario.durations = {{computes.data(), 15, first_rank.data()}, {nullptr, 5, nullptr}, {nullptr, 1, nullptr}, {}};
  EXPECT_EQ(simulator.replay(scenario).optimizer, (std::vector<double>{15 + 6, 30 + 6}));
  scenario.durations[0] = {computes.data(), 15, nullptr};
  EXPECT_EQ(simulator.replay(scenario).optimizer, (std::vector<double>{20 + 6, 40 + 6}));
}

TEST(Simulator, NoStepsGiveNoEnds) {
  const OpGraph graph = small_graph();
  const Simulator simulator(graph, 2, 0);
  Scenario scenario;
  scenario.durations.resize(4);
  EXPECT_TRUE(simulator.replay(scenario).optimizer.empty());
  EXPECT_TRUE(simulator.replay_each_against_ideal(scenario, std::vector<double>(4)).empty());
}

struct Size {
  std::size_t dp_size;
  std::size_t step_count;
};

// One block of lanes, several, a last one that is not full, and more dp ranks than a block has lanes.
constexpr Size kSizes[] = {{1, 1},   {1, 127}, {1, 128}, {1, 129}, {1, 257}, {1, 600}, {2, 63},  {2, 64},  {2, 65},
                           {3, 100}, {7, 40},  {100, 4}, {127, 3}, {128, 2}, {129, 3}, {255, 2}, {256, 2}, {300, 3}};

TEST(Simulator, ReplaysAsTheDefinitionSays) {
  std::mt19937 random(11);
  for (const Size& size : kSizes) {
    for (bool with_delays : {false, true}) {
      const OpGraph graph = testing::random_graph(random, 30);
      const std::size_t count = graph.size() * size.dp_size * size.step_count;
      const std::vector<double> durations = testing::random_values(random, count);
      const std::vector<double> delays =
          with_delays ? testing::random_values(random, count, 100) : std::vector<double>();
      const StepEnds expected = NaiveReplay(graph, size.dp_size, size.step_count, durations, delays).step_ends();
      const Simulator simulator(graph, size.dp_size, size.step_count);
      const StepEnds ends = simulator.replay(scenario_of(durations, delays, graph.size()));
      ASSERT_EQ(ends.optimizer, expected.optimizer) << size.dp_size << " dp ranks, " << size.step_count << " steps";
      ASSERT_EQ(ends.last, expected.last) << size.dp_size << " dp ranks, " << size.step_count << " steps";
    }
  }
}

TEST(Simulator, ReplaysManySmallGraphsAsTheDefinitionSays) {
  std::mt19937 random(12);
  for (int round = 0; round < 300; ++round) {
    const OpGraph graph = testing::random_graph(random, 1 + random() % 50);
    const std::size_t dp_size = 1 + random() % 4;
    const std::size_t count = graph.size() * dp_size * 3;
    const std::vector<double> durations = testing::random_values(random, count, 50);
    const std::vector<double> delays = testing::random_values(random, count, 50);
    const StepEnds expected = NaiveReplay(graph, dp_size, 3, durations, delays).step_ends();
    const StepEnds ends = Simulator(graph, dp_size, 3).replay(scenario_of(durations, delays, graph.size()));
    ASSERT_EQ(ends.optimizer, expected.optimizer) << "round " << round;
    ASSERT_EQ(ends.last, expected.last) << "round " << round;
  }
}

TEST(Simulator, SeveralScenariosAtOnceGiveWhatEachGivesAlone) {
  std::mt19937 random(13);
  for (const Size& size : {Size{1, 300}, Size{3, 100}, Size{300, 2}}) {
    const OpGraph graph = testing::random_graph(random, 30);
    const std::size_t count = graph.size() * size.dp_size * size.step_count;
    const Simulator simulator(graph, size.dp_size, size.step_count);
    std::vector<std::vector<double>> values;
    for (int i = 0; i < 6; ++i) values.push_back(testing::random_values(random, count));
    std::vector<Scenario> scenarios;
    const std::vector<double> no_delays;
    for (std::size_t i = 0; i < 3; ++i) {
      scenarios.push_back(scenario_of(values[2 * i], i == 1 ? no_delays : values[2 * i + 1], graph.size()));
    }
    const std::vector<StepEnds> together = simulator.replay_all(scenarios);
    ASSERT_EQ(together.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const StepEnds alone = simulator.replay(scenarios[i]);
      EXPECT_EQ(together[i].optimizer, alone.optimizer);
      EXPECT_EQ(together[i].last, alone.last);
    }
  }
  EXPECT_TRUE(Simulator(small_graph(), 1, 1).replay_all({}).empty());
}

TEST(Simulator, AShorterOpNeverLengthensTheJob) {
  std::mt19937 random(14);
  for (int round = 0; round < 200; ++round) {
    const OpGraph graph = testing::random_graph(random, 40);
    const Simulator simulator(graph, 2, 2);
    std::vector<double> durations = testing::random_values(random, graph.size() * 4);
    const StepEnds before = simulator.replay(scenario_of(durations, {}, graph.size()));
    double& shorter = durations[random() % durations.size()];
    shorter = static_cast<double>(random() % (static_cast<std::uint32_t>(shorter) + 1));
    const StepEnds after = simulator.replay(scenario_of(durations, {}, graph.size()));
    for (std::size_t step = 0; step < 2; ++step) {
      ASSERT_LE(after.optimizer[step], before.optimizer[step]) << "round " << round;
      ASSERT_LE(after.last[step], before.last[step]) << "round " << round;
    }
  }
}

TEST(Simulator, AllDurationsAndDelaysTimesKGiveTheStepsTimesK) {
  std::mt19937 random(15);
  const OpGraph graph = testing::random_graph(random, 60);
  const Simulator simulator(graph, 3, 5);
  std::vector<double> durations = testing::random_values(random, graph.size() * 15);
  std::vector<double> delays = testing::random_values(random, graph.size() * 15);
  const StepEnds once = simulator.replay(scenario_of(durations, delays, graph.size()));
  for (double& value : durations) value *= 7;
  for (double& value : delays) value *= 7;
  const StepEnds scaled = simulator.replay(scenario_of(durations, delays, graph.size()));
  for (std::size_t step = 0; step < 5; ++step) {
    EXPECT_EQ(scaled.optimizer[step], 7 * once.optimizer[step]);
    EXPECT_EQ(scaled.last[step], 7 * once.last[step]);
  }
}

TEST(Simulator, LanesThatLackOpsReplayAsTheDefinitionSays) {
  std::mt19937 random(17);
  for (int round = 0; round < 300; ++round) {
    const OpGraph graph = testing::random_graph(random, 1 + random() % 50);
    const std::size_t dp_size = 1 + random() % 4;
    const std::size_t count = graph.size() * dp_size * 3;
    const LaneMask takes_part = testing::random_mask(random, graph.size(), dp_size * 3);
    const std::vector<double> durations = testing::random_values(random, count, 50);
    const std::vector<double> delays =
        round % 2 == 0 ? testing::random_values(random, count, 50) : std::vector<double>();
    const StepEnds expected = NaiveReplay(graph, dp_size, 3, durations, delays, takes_part).step_ends();
    const StepEnds ends =
        Simulator(graph, dp_size, 3, &takes_part).replay(scenario_of(durations, delays, graph.size()));
    ASSERT_EQ(ends.optimizer, expected.optimizer) << "round " << round;
    ASSERT_EQ(ends.last, expected.last) << "round " << round;
  }
}

// The step time of each lane when its dp rank alone runs the scenario: one full replay for each dp rank.
std::vector<double> each_alone(const Simulator& simulator, const std::vector<double>& durations,
                               const std::vector<double>& ideal) {
  const std::size_t lanes = simulator.lane_count();
  const std::size_t dp_size = simulator.dp_size();
  std::vector<double> ends(lanes);
  for (std::size_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
    std::vector<std::uint64_t> mask(lanes);
    for (std::size_t lane = dp_rank; lane < lanes; lane += dp_size) mask[lane] = ~std::uint64_t{0};
    Scenario scenario;
    for (std::size_t op = 0; op < ideal.size(); ++op) {
      scenario.durations.push_back({durations.data() + op * lanes, ideal[op], mask.data()});
    }
    const StepEnds replayed = simulator.replay(scenario);
    for (std::size_t lane = dp_rank; lane < lanes; lane += dp_size) ends[lane] = replayed.optimizer[lane / dp_size];
  }
  return ends;
}

TEST(Simulator, EachLaneAgainstIdealOnesIsWhatAFullReplayOfEachGives) {
  std::mt19937 random(16);
  for (const Size& size : {Size{1, 1}, Size{1, 300}, Size{2, 90}, Size{3, 50}, Size{7, 20}, Size{130, 2}}) {
    for (int round = 0; round < 3; ++round) {
      const OpGraph graph = testing::random_graph(random, 40);
      const Simulator simulator(graph, size.dp_size, size.step_count);
      const std::vector<double> durations =
          testing::random_values(random, graph.size() * size.dp_size * size.step_count);
      const std::vector<double> ideal = testing::random_values(random, graph.size());
      ASSERT_EQ(simulator.replay_each_against_ideal(scenario_of(durations, {}, graph.size()), ideal),
                each_alone(simulator, durations, ideal))
          << size.dp_size << " dp ranks, " << size.step_count << " steps";
    }
  }
}

TEST(Simulator, EachLaneAgainstIdealOnesIsExactWhereIdealLanesDiffer) {
  std::mt19937 random(18);
  for (const Size& size : {Size{1, 1}, Size{1, 30}, Size{2, 90}, Size{3, 50}, Size{7, 20}, Size{130, 2}}) {
    for (int round = 0; round < 5; ++round) {
      const OpGraph graph = testing::random_graph(random, 40);
      const LaneMask takes_part = testing::random_mask(random, graph.size(), size.dp_size * size.step_count);
      const Simulator simulator(graph, size.dp_size, size.step_count, &takes_part);
      const std::vector<double> durations =
          testing::random_values(random, graph.size() * size.dp_size * size.step_count);
      const std::vector<double> ideal = testing::random_values(random, graph.size());
      ASSERT_EQ(simulator.replay_each_against_ideal(scenario_of(durations, {}, graph.size()), ideal),
                each_alone(simulator, durations, ideal))
          << size.dp_size << " dp ranks, " << size.step_count << " steps";
    }
  }
}

// Shards within replicas: rows and columns of a grid of dp ranks; and parts that fit no grid.
std::vector<std::vector<std::uint32_t>> parts_of(std::size_t rows, std::size_t columns, bool is_grid) {
  std::vector<std::vector<std::uint32_t>> parts(2);
  for (std::size_t rank = 0; rank < rows * columns; ++rank) {
    parts[0].push_back(static_cast<std::uint32_t>(rank / columns));
    parts[1].push_back(static_cast<std::uint32_t>(is_grid ? rank % columns : (rank * rank + rank / 3) % columns));
  }
  return parts;
}

TEST(Simulator, DpRanksInPartsWaitForThoseOfTheirPartOnly) {
  std::mt19937 random(20);
  for (int round = 0; round < 30; ++round) {
    const std::size_t columns = 2 + random() % 3, dp_size = 3 * columns, steps = 1 + random() % 30;
    const OpGraph graph = testing::random_graph(random, 40, parts_of(3, columns, round % 2 == 0));
    const std::vector<double> durations = testing::random_values(random, graph.size() * dp_size * steps);
    const testing::NaiveReplay naive(graph, dp_size, steps, durations, {});
    const Simulator simulator(graph, dp_size, steps);
    const StepEnds ends = simulator.replay(scenario_of(durations, {}, graph.size()));
    ASSERT_EQ(ends.optimizer, naive.step_ends().optimizer);
    ASSERT_EQ(ends.last, naive.step_ends().last);
  }
}

TEST(Simulator, EachLaneAgainstIdealOnesIsExactWhereDpRanksCommunicateInParts) {
  std::mt19937 random(21);
  for (int round = 0; round < 40; ++round) {
    const std::size_t columns = 2 + random() % 3, dp_size = 3 * columns, steps = 1 + random() % 30;
    const OpGraph graph = testing::random_graph(random, 40, parts_of(3, columns, round % 2 == 0));
    const LaneMask takes_part = testing::random_mask(random, graph.size(), dp_size * steps);
    const Simulator simulator(graph, dp_size, steps, round % 4 < 2 ? nullptr : &takes_part);
    const std::vector<double> durations = testing::random_values(random, graph.size() * dp_size * steps);
    const std::vector<double> ideal = testing::random_values(random, graph.size());
    ASSERT_EQ(simulator.replay_each_against_ideal(scenario_of(durations, {}, graph.size()), ideal),
              each_alone(simulator, durations, ideal));
  }
}

}  // namespace
}  // namespace smon_rt::analysis
