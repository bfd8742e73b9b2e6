#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/lane_buffer.h"
#include "analysis/lane_table.h"
#include "analysis/op_graph.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// What each op took by itself, taken out of the recorded timeline with the help of the graph. One row of lanes an op.
///
/// duration: for ops of a communication group the transfer, end − max(start over the group); else end − start.
/// launch delay: start − max(end of what it waits for), the untraced host work before it; ops that wait for nothing
/// count from the start of the step.
/// Method: OSDI 2025, section 3; like the published analyzer, values of −10 ms or less are set to 0 and smaller
/// negative ones, the clock error of the recording, are kept.
struct OpTiming {
  LaneBuffer durations_ns;
  LaneBuffer launch_delays_ns;
  std::size_t lane_count = 0;
  /// Ops that start before what they wait for has ended, by more than the clock tolerance of the recording.
  std::int64_t early_start_count = 0;
  double worst_early_start_ns = 0;

  const double* durations(OpIndex op) const { return durations_ns.data() + op * lane_count; }
  const double* launch_delays(OpIndex op) const { return launch_delays_ns.data() + op * lane_count; }
};

OpTiming measure_ops(const LaneTable& table, const OpGraph& graph);

/// The duration of an op of each kind in the job without stragglers, in nanoseconds: over all lanes and stages the
/// mean for computation, the median for communication. 0 for kinds that do not occur.
std::array<double, kKindCount> ideal_durations(const OpTiming& timing, const OpGraph& graph);

}  // namespace smon_rt::analysis
