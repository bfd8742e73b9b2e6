#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/op_graph.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// A job of other dp ranks than were recorded: which recorded lane each of its lanes plays.
struct LaneChoice {
  std::size_t dp_size = 1;
  std::vector<std::uint32_t> lanes;     // [step · dp_size + dp rank]: a lane of the recording
  std::vector<double> compute_factors;  // of that lane's forwards and backwards; empty: 1
};

/// Some of the recorded dp ranks, each step as it was.
LaneChoice choose_dp_ranks(const WhatIf& what_if, const std::vector<std::size_t>& dp_ranks);

/// `dp_size` replicas after the measure of `dp_ranks`. Fewer: some of them, drawn anew for each step. More: these, and
/// beside them others, each of which is one of the recorded ranks for good and runs in each step one of that rank's
/// steps, drawn, brought to what the step usually took (the median over the ranks): what slows a step for all stays
/// where it was. Deterministic by `seed`.
LaneChoice draw_dp_ranks(const WhatIf& what_if, const Scenario& scenario, const std::vector<std::size_t>& dp_ranks,
                         std::size_t dp_size, std::uint64_t seed);

/// The graph for lanes of these dp ranks: who communicates with whom where not all do is known for recorded ranks only.
/// Errors: none that the graph itself did not have.
Result<OpGraph> graph_of_dp_ranks(const OpGraph& graph, const std::vector<std::size_t>& dp_ranks);

/// False where some collective joins only a part of the dp ranks: more replicas than recorded have no place then.
bool joins_all_dp_ranks(const OpGraph& graph);

/// Step times of `scenario` in the chosen lanes, on the graph of graph_of_dp_ranks. Cost: a copy of the times of a
/// block of steps at a time. `counter` is asked before each block, since many dp ranks take minutes: once it has
/// stopped, steps are missing.
std::vector<double> replay_lanes(const WhatIf& what_if, const Scenario& scenario, const OpGraph& graph,
                                 const LaneChoice& choice, ReplayCounter* counter = nullptr);

/// What each lane's step takes when its dp rank waits for no other one.
std::vector<double> own_lane_ns(const WhatIf& what_if, const Scenario& scenario);

}  // namespace smon_rt::analysis
