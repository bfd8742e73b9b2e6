#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/lane_buffer.h"
#include "analysis/lane_mask.h"
#include "analysis/lane_ops.h"
#include "analysis/op_columns.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// The recorded times of all ops, as one row of lanes per op.
/// A lane is one (step, dp_rank); lane = step index · dp_size + dp_rank, so that the lanes that communicate over data
/// parallelism lie side by side. Values are nanoseconds from the start of the step, held in doubles (exact below
/// 2^53 ns, 104 days).
class LaneTable {
 public:
  /// Sorts the rows of `columns` (already validated) into lanes.
  /// Errors: a lane that lacks an op of dp rank 0's first step, has one more, or has one twice; a rank that appears
  /// in two workers.
  static Result<LaneTable> build(const OpColumns& columns, const JobLayout& layout);

  /// dp rank 0's ops of the first step; op i of the table is template_ops()[i].
  const std::vector<RecordedOp>& template_ops() const { return template_ops_; }
  const std::vector<std::int64_t>& steps() const { return steps_; }
  std::size_t op_count() const { return template_ops_.size(); }
  std::size_t lane_count() const { return steps_.size() * dp_size_; }
  std::size_t dp_size() const { return dp_size_; }
  /// Start and end of op `op` in each lane.
  const double* starts_ns(OpIndex op) const { return starts_ns_.data() + op * lane_count(); }
  const double* ends_ns(OpIndex op) const { return ends_ns_.data() + op * lane_count(); }
  /// The last recorded end of each step, from the step's first recorded start; where it is known when the workers began
  /// their steps, the longest that one of them took.
  const std::vector<double>& step_times_ns() const { return step_times_ns_; }
  /// Lowest recorded rank of each worker: [dp_rank · pp_size + stage]; -1 for a worker without any op.
  const std::vector<std::int32_t>& worker_ranks() const { return worker_ranks_; }
  /// Lanes in which an op was recorded; elsewhere its start and end are 0. Everything by the reference rules.
  const LaneMask& recorded() const { return recorded_; }
  /// When each worker began its step, [lane · pp_size + stage], from the first that did; empty: all at once.
  const std::vector<double>& worker_starts_ns() const { return worker_starts_ns_; }
  double worker_start_ns(std::size_t lane, std::int32_t stage) const {
    if (worker_starts_ns_.empty()) return 0;
    return worker_starts_ns_[lane * (worker_starts_ns_.size() / lane_count()) + static_cast<std::size_t>(stage)];
  }
  /// Lanes whose end of a communication was waited for; of the others it may say nothing.
  const LaneMask& waited() const { return waited_; }
  /// Lanes in which a replay has an op: recorded, or lost and put in where it must have been (lost_ops.h).
  const LaneMask& takes_part() const { return takes_part_; }

 private:
  friend class IdLaneBuilder;
  friend class LostOps;

  std::vector<RecordedOp> template_ops_;
  std::vector<std::int64_t> steps_;
  std::size_t dp_size_ = 1;
  LaneBuffer starts_ns_;
  LaneBuffer ends_ns_;
  std::vector<double> step_times_ns_;
  std::vector<std::int32_t> worker_ranks_;
  LaneMask recorded_;
  LaneMask waited_;
  std::vector<double> worker_starts_ns_;
  LaneMask takes_part_;
};

}  // namespace smon_rt::analysis
