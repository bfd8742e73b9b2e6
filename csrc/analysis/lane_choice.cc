#include "analysis/lane_choice.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "analysis/lane_buffer.h"
#include "analysis/lane_mask.h"
#include "analysis/simulator.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

// Values of one row kept at a time: 128 MiB of durations and as much of launch delays.
constexpr std::size_t kValuesPerBlock = std::size_t{16} << 20;

double value_of(const OpValues& values, std::size_t lane) {
  if (values.lanes == nullptr) return values.constant;
  return values.mask == nullptr || values.mask[lane] != 0 ? values.lanes[lane] : values.constant;
}

bool is_pass(Kind kind) {
  return kind == Kind::kForwardCompute || kind == Kind::kBackwardCompute || kind == Kind::kForwardBackwardCombined;
}

// splitmix64: small, and the same on every machine, which the distributions of <random> are not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::size_t below(std::size_t count) {
    std::uint64_t x = (state_ += 0x9e3779b97f4a7c15u);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return static_cast<std::size_t>((x ^ (x >> 31)) % count);
  }

 private:
  std::uint64_t state_;
};

// The lanes [first, first + count) of a choice with their times side by side, as a scenario of its own.
struct Gathered {
  LaneBuffer durations, delays;
  LaneMask takes_part;
  Scenario scenario;
};

Gathered gather(const WhatIf& what_if, const Scenario& scenario, const LaneChoice& choice, std::size_t first,
                std::size_t count) {
  const OpGraph& graph = what_if.graph();
  const LaneMask& recorded = what_if.timing().takes_part;
  Gathered result{LaneBuffer(graph.size() * count), LaneBuffer(graph.size() * count), {}, {}};
  if (!recorded.is_everything()) result.takes_part = LaneMask(graph.size(), count);
  for (OpIndex op = 0; op < graph.size(); ++op) {
    double* durations = result.durations.data() + op * count;
    double* delays = result.delays.data() + op * count;
    const bool scales = is_pass(graph.op(op).kind) && !choice.compute_factors.empty();
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t lane = choice.lanes[first + i];
      const double factor = scales ? choice.compute_factors[first + i] : 1;
      durations[i] = factor * value_of(scenario.durations[op], lane);
      delays[i] = scenario.launch_delays.empty() ? 0 : value_of(scenario.launch_delays[op], lane);
      if (!recorded.has(op, lane)) result.takes_part.take_out(op, i);
    }
    result.scenario.durations.push_back({durations, 0, nullptr});
    result.scenario.launch_delays.push_back({delays, 0, nullptr});
  }
  return result;
}

// What a lane computes in a step, over all stages.
std::vector<double> computed_ns(const WhatIf& what_if, const Scenario& scenario) {
  std::vector<double> sums(what_if.timing().lane_count, 0);
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    if (!is_pass(what_if.graph().op(op).kind)) continue;
    for (std::size_t lane = 0; lane < sums.size(); ++lane) {
      if (what_if.timing().takes_part.has(op, lane)) sums[lane] += value_of(scenario.durations[op], lane);
    }
  }
  return sums;
}

// Median over the dp ranks, by step. One rank alone: what differs from step to step is its own.
std::vector<double> usual_by_step(const WhatIf& what_if, const Scenario& scenario,
                                  const std::vector<std::size_t>& dp_ranks) {
  std::vector<double> usual(what_if.step_count(), 1);
  if (dp_ranks.size() == 1) return usual;
  const std::vector<double> computed = computed_ns(what_if, scenario);
  std::vector<double> values;
  for (std::size_t step = 0; step < usual.size(); ++step) {
    values.clear();
    for (std::size_t rank : dp_ranks) values.push_back(computed[step * what_if.dp_size() + rank]);
    usual[step] = median(values);
  }
  return usual;
}

LaneChoice draw_fewer(const WhatIf& what_if, std::vector<std::size_t> dp_ranks, std::size_t dp_size, Random& random) {
  LaneChoice choice;
  choice.dp_size = dp_size;
  for (std::size_t step = 0; step < what_if.step_count(); ++step) {
    for (std::size_t i = 0; i < dp_size; ++i) {
      std::swap(dp_ranks[i], dp_ranks[i + random.below(dp_ranks.size() - i)]);
      choice.lanes.push_back(static_cast<std::uint32_t>(step * what_if.dp_size() + dp_ranks[i]));
    }
  }
  return choice;
}

}  // namespace

LaneChoice choose_dp_ranks(const WhatIf& what_if, const std::vector<std::size_t>& dp_ranks) {
  LaneChoice choice;
  choice.dp_size = dp_ranks.size();
  for (std::size_t step = 0; step < what_if.step_count(); ++step) {
    for (std::size_t rank : dp_ranks) {
      choice.lanes.push_back(static_cast<std::uint32_t>(step * what_if.dp_size() + rank));
    }
  }
  return choice;
}

LaneChoice draw_dp_ranks(const WhatIf& what_if, const Scenario& scenario, const std::vector<std::size_t>& dp_ranks,
                         std::size_t dp_size, std::uint64_t seed) {
  Random random(seed);
  if (dp_size <= dp_ranks.size()) return draw_fewer(what_if, dp_ranks, dp_size, random);
  const std::vector<double> usual = usual_by_step(what_if, scenario, dp_ranks);
  std::vector<std::size_t> replicas = dp_ranks;
  while (replicas.size() < dp_size) replicas.push_back(dp_ranks[random.below(dp_ranks.size())]);
  LaneChoice choice;
  choice.dp_size = dp_size;
  for (std::size_t step = 0; step < what_if.step_count(); ++step) {
    for (std::size_t i = 0; i < dp_size; ++i) {
      const std::size_t from = i < dp_ranks.size() ? step : random.below(what_if.step_count());
      choice.lanes.push_back(static_cast<std::uint32_t>(from * what_if.dp_size() + replicas[i]));
      choice.compute_factors.push_back(from != step && usual[from] > 0 ? usual[step] / usual[from] : 1);
    }
  }
  return choice;
}

Result<OpGraph> graph_of_dp_ranks(const OpGraph& graph, const std::vector<std::size_t>& dp_ranks) {
  OpGraphBuilder builder;
  for (const Op& op : graph.ops()) builder.add_op(op);
  for (OpIndex op = 0; op < graph.size(); ++op) {
    for (OpIndex before : graph.dependencies(op)) builder.add_dependency(op, before);
  }
  for (const Group& group : graph.groups()) {
    Group chosen{group.members, group.spans_dp, {}};
    if (!group.dp_part.empty() && dp_ranks.size() > 1) {
      std::map<std::uint32_t, std::uint32_t> number_of;
      for (std::size_t rank : dp_ranks) {
        const auto number = static_cast<std::uint32_t>(number_of.size());
        chosen.dp_part.push_back(number_of.try_emplace(group.dp_part[rank], number).first->second);
      }
    }
    builder.add_group(std::move(chosen));
  }
  if (!graph.step_ends_with_optimizer()) builder.end_step_with_any_op();
  return std::move(builder).build();
}

bool joins_all_dp_ranks(const OpGraph& graph) {
  return std::all_of(graph.groups().begin(), graph.groups().end(),
                     [](const Group& group) { return group.dp_part.empty(); });
}

std::vector<double> replay_lanes(const WhatIf& what_if, const Scenario& scenario, const OpGraph& graph,
                                 const LaneChoice& choice, ReplayCounter* counter) {
  const std::size_t step_count = choice.lanes.size() / choice.dp_size;
  const std::size_t values_per_step = std::max(std::size_t{1}, graph.size() * choice.dp_size);
  const std::size_t block_steps = std::clamp(kValuesPerBlock / values_per_step, std::size_t{1}, step_count);
  std::vector<double> step_ns;
  for (std::size_t step = 0; step < step_count; step += block_steps) {
    if (counter != nullptr && !counter->go_on()) break;
    const std::size_t steps = std::min(block_steps, step_count - step);
    const Gathered gathered = gather(what_if, scenario, choice, step * choice.dp_size, steps * choice.dp_size);
    const Simulator simulator(graph, choice.dp_size, steps, &gathered.takes_part);
    const StepEnds ends = simulator.replay(gathered.scenario);
    step_ns.insert(step_ns.end(), ends.last.begin(), ends.last.end());
  }
  return step_ns;
}

std::vector<double> own_lane_ns(const WhatIf& what_if, const Scenario& scenario) {
  auto graph = graph_of_dp_ranks(what_if.graph(), {0});
  if (!graph) return {};
  LaneChoice alone;
  alone.lanes.resize(what_if.timing().lane_count);
  std::iota(alone.lanes.begin(), alone.lanes.end(), 0U);
  return replay_lanes(what_if, scenario, *graph, alone);
}

}  // namespace smon_rt::analysis
