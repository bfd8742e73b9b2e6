#pragma once

#include "analysis/id_lanes.h"
#include "analysis/lane_buffer.h"
#include "analysis/op_graph.h"
#include "analysis/op_timing.h"

namespace smon_rt::analysis {

/// Of each launch delay the part in which nothing that was recorded of its worker was under way: the host was between
/// two ops. A delay during which the worker computed, communicated or waited for communication is none: the graph does
/// not know what the op waited for then. Indexed like the launch delays, never negative.
///
/// Counted with care: a communication counts as under way from its start to its end, unless nobody saw the end; a send
/// that the computing thread waited for, from the last thing that this thread did before the wait returned.
LaneBuffer host_gaps(const IdLanes& lanes, const OpGraph& graph, const OpTiming& timing);

}  // namespace smon_rt::analysis
