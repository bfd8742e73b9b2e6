#pragma once

#include <cstdint>
#include <vector>

#include "analysis/id_cells.h"
#include "analysis/launch_order.h"
#include "analysis/op_columns.h"
#include "analysis/op_graph.h"

namespace smon_rt::analysis {

/// Who communicates with whom, by the column group_id. A relation holds in all lanes: the one that most lanes have
/// wins, and a step with another one is left out of `cells`. A lane may lack members. Ids say nothing about members
/// that have none (-1), nor about an op alone. A collective may go over some dp ranks and not over others that have the
/// op as well (sharding within replicas): then dp ranks that ever were in one are a part of them in all steps.
std::vector<Group> find_groups(const OpColumns& columns, const LaunchOrder& order, IdCells& cells);

}  // namespace smon_rt::analysis
