#pragma once

#include <cstdint>
#include <vector>

#include "analysis/id_cells.h"
#include "analysis/launch_order.h"
#include "analysis/op_columns.h"
#include "analysis/op_graph.h"

namespace smon_rt::analysis {

struct IdGroups {
  std::vector<Group> groups;
  std::int64_t split_group_count = 0;
};

/// Who communicates with whom, by the column group_id. A relation holds in all lanes: the one that most lanes have
/// wins, and a step with another one is left out of `cells`. A lane may lack members. Ids say nothing about members
/// that have none (-1), nor about an op alone. A collective over some dp ranks and not over others that have the op as
/// well (sharding within replicas) cannot be a group of the graph: its ops stay without partners, and are counted.
IdGroups find_groups(const OpColumns& columns, const LaunchOrder& order, IdCells& cells);

}  // namespace smon_rt::analysis
