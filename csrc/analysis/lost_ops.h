#pragma once

#include "analysis/lane_table.h"
#include "analysis/op_graph.h"

namespace smon_rt::analysis {

/// Puts ops that were lost back into the lanes. An op that a lane lacks though a partner of its group was recorded did
/// happen: the partner waited for it. It starts when all that it waits for has ended, takes no time of its own, and
/// counts in no mean or median; without it the others of its group would seem to communicate while they wait.
/// Other ops that a lane lacks never happened there: nobody waits for them.
void put_in_lost_ops(LaneTable& table, const OpGraph& graph);

}  // namespace smon_rt::analysis
