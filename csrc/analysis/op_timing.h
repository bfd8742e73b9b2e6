#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "analysis/lane_buffer.h"
#include "analysis/lane_mask.h"
#include "analysis/lane_table.h"
#include "analysis/op_graph.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// What each op took by itself, taken out of the recorded timeline with the help of the graph. One row of lanes an op.
///
/// duration: for ops of a communication group the transfer, end − max(start over the group); else end − start.
/// launch delay: start − max(end of what it waits for), the untraced host work before it; ops that wait for nothing
/// count from the start of the step on their worker.
/// Method: OSDI 2025, section 3. Both are 0 in lanes that lack the op.
struct OpTiming {
  LaneBuffer durations_ns;
  LaneBuffer launch_delays_ns;
  std::size_t lane_count = 0;
  /// Ops that start before what they wait for has ended, by more than the clock tolerance of the recording.
  std::int64_t early_start_count = 0;
  double worst_early_start_ns = 0;
  /// Transfers that end before the last of their group starts, by more than the clock tolerance. Always 0 by the
  /// reference rules.
  std::int64_t negative_transfer_count = 0;
  double worst_negative_transfer_ns = 0;
  /// Lanes whose times of an op are its own, for means and medians, and those in which a replay has the op.
  LaneMask counted;
  LaneMask takes_part;
  /// Lanes whose communication waited for nobody who was not recorded, as far as is known (waits_for_missing.h).
  LaneMask complete;

  const double* durations(OpIndex op) const { return durations_ns.data() + op * lane_count; }
  const double* launch_delays(OpIndex op) const { return launch_delays_ns.data() + op * lane_count; }
};

/// What becomes of times that cannot be. As the published analyzer has it unless said otherwise.
struct TimingRules {
  /// Clocks of two machines agree no better than this: only what is off by more is counted.
  double clock_tolerance_ns = 50e3;
  /// Transfers and launch delays of −10 ms or less become 0; smaller negative ones are kept as clock errors.
  bool drops_implausible = true;
  bool counts_negative_transfers = false;

  /// What is this or less becomes 0.
  double implausible_ns() const { return drops_implausible ? -10e6 : -std::numeric_limits<double>::infinity(); }
};

OpTiming measure_ops(const LaneTable& table, const OpGraph& graph, const TimingRules& rules = {});

/// The duration of an op of each kind in the job without stragglers, in nanoseconds: over all stages, and the lanes
/// that recorded it, the mean for computation, the median for communication. 0 for kinds that do not occur.
std::array<double, kKindCount> ideal_durations(const OpTiming& timing, const OpGraph& graph);

/// The same of each op. Communication that in all lanes waited for somebody who was not recorded takes its own median:
/// how much of that was waiting nobody knows.
std::vector<double> ideal_durations_of_ops(const OpTiming& timing, const OpGraph& graph);

}  // namespace smon_rt::analysis
