#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "analysis/launch_order.h"
#include "analysis/op_columns.h"
#include "analysis/op_graph.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// All launches by op and lane: what IdLanes is made from. Ops are numbered as they first appear.
struct IdCells {
  static constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

  std::vector<Op> ops;                // seq_id: number among ops of equal ids
  std::vector<OpIndex> op_of;         // of each launch of the launch order
  std::vector<std::uint32_t> launch;  // [op · lane_count + lane], kNone where the lane lacks the op
  std::size_t lane_count = 0;
  std::size_t dp_size = 1;
  std::size_t pp_size = 1;
  std::vector<std::int64_t> steps;
  std::vector<std::string> left_out;  // per step: why, or empty

  bool has(OpIndex op, std::size_t lane) const { return launch[op * lane_count + lane] != kNone; }
  bool is_left_out(std::size_t lane) const { return !left_out[lane / dp_size].empty(); }
  void leave_out(std::size_t step, std::string reason) {
    if (left_out[step].empty()) left_out[step] = std::move(reason);
  }
};

/// Gives every launch its op: see IdLanes. Errors: lanes that have next to nothing in common.
Result<IdCells> identify(const OpColumns& columns, const JobLayout& layout, const LaunchOrder& order,
                         std::vector<std::int64_t> steps);

/// "forward_compute of microbatch 3, chunk 0 on stage 1": how an op is named where ids count.
std::string describe_by_ids(const Op& op);

}  // namespace smon_rt::analysis
