#include "analysis/what_if.h"

namespace smon_rt::analysis {
namespace {

// All ones in the lanes of the dp ranks for which `chooses` says so. Lives in the scenario.
template <typename Chooses>
const std::uint64_t* add_mask(Scenario& scenario, std::size_t lane_count, std::size_t dp_size, Chooses chooses) {
  std::vector<std::uint64_t>& mask = scenario.owned_masks.emplace_back(lane_count);
  for (std::size_t lane = 0; lane < lane_count; ++lane) mask[lane] = chooses(lane % dp_size) ? ~std::uint64_t{0} : 0;
  return mask.data();
}

}  // namespace

std::vector<std::pair<std::size_t, std::size_t>> WorkerSet::workers() const {
  std::vector<std::pair<std::size_t, std::size_t>> result;
  for (std::size_t i = 0; i < contains_.size(); ++i) {
    if (contains_[i]) result.emplace_back(i / pp_size_, i % pp_size_);
  }
  return result;
}

WhatIf::WhatIf(const OpGraph& graph, const OpTiming& timing, std::size_t dp_size, std::size_t pp_size)
    : graph_(graph),
      timing_(timing),
      dp_size_(dp_size),
      pp_size_(pp_size),
      simulator_(graph, dp_size, timing.lane_count / dp_size, &timing.takes_part),
      ideal_(ideal_durations_of_ops(timing, graph)) {}

Scenario WhatIf::recorded() const {
  return nodelay_with_launch_delays([](const Op&) { return true; });
}

Scenario WhatIf::nodelay() const {
  return nodelay_except([](const Op&) { return false; });
}

Scenario WhatIf::ideal() const {
  return ideal_except([](const Op&) { return false; });
}

Scenario WhatIf::ideal_except(const OpPredicate& keeps_recorded) const {
  Scenario scenario;
  for (OpIndex op = 0; op < graph_.size(); ++op) {
    scenario.durations.push_back(keeps_recorded(graph_.op(op)) ? recorded_duration(op) : ideal_duration(op));
  }
  return scenario;
}

Scenario WhatIf::nodelay_except(const OpPredicate& becomes_ideal) const {
  return ideal_except([&](const Op& op) { return !becomes_ideal(op); });
}

Scenario WhatIf::ideal_except(const WorkerSet& keeps_recorded) const {
  Scenario scenario;
  std::vector<const std::uint64_t*> mask_of_stage;
  for (std::size_t stage = 0; stage < pp_size_; ++stage) {
    mask_of_stage.push_back(add_mask(scenario, timing_.lane_count, dp_size_,
                                     [&](std::size_t dp_rank) { return keeps_recorded.contains(dp_rank, stage); }));
  }
  for (OpIndex op = 0; op < graph_.size(); ++op) {
    const auto stage = static_cast<std::size_t>(graph_.op(op).stage);
    scenario.durations.push_back({timing_.durations(op), ideal_[op], mask_of_stage[stage]});
  }
  return scenario;
}

Scenario WhatIf::nodelay_except(const WorkerSet& becomes_ideal) const {
  WorkerSet others(dp_size_, pp_size_);
  for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
    for (std::size_t stage = 0; stage < pp_size_; ++stage) {
      if (!becomes_ideal.contains(dp_rank, stage)) others.add(dp_rank, stage);
    }
  }
  return ideal_except(others);
}

Scenario WhatIf::nodelay_with_launch_delays(const OpPredicate& keeps_delay) const {
  Scenario scenario = nodelay();
  for (OpIndex op = 0; op < graph_.size(); ++op) {
    scenario.launch_delays.push_back(keeps_delay(graph_.op(op)) ? OpValues{timing_.launch_delays(op), 0, nullptr}
                                                                : OpValues{});
  }
  return scenario;
}

Scenario WhatIf::nodelay_with_launch_delays(std::size_t dp_rank) const {
  Scenario scenario = nodelay();
  const std::uint64_t* mask =
      add_mask(scenario, timing_.lane_count, dp_size_, [&](std::size_t candidate) { return candidate == dp_rank; });
  for (OpIndex op = 0; op < graph_.size(); ++op) {
    scenario.launch_delays.push_back({timing_.launch_delays(op), 0, mask});
  }
  return scenario;
}

Scenario WhatIf::nodelay_with(const LaneBuffer& launch_delays_ns) const {
  Scenario scenario = nodelay();
  for (OpIndex op = 0; op < graph_.size(); ++op) {
    scenario.launch_delays.push_back({launch_delays_ns.data() + op * timing_.lane_count, 0, nullptr});
  }
  return scenario;
}

}  // namespace smon_rt::analysis
