#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "analysis/lane_table.h"
#include "analysis/op_graph.h"

namespace smon_rt::analysis {

/// Workers of which nothing was recorded, though others of their stage were: what they must have done, as far as these
/// tell. Where a whole stage is missing nothing does, and it has no ops.
class MissingWorkers {
 public:
  /// Borrows both.
  MissingWorkers(const LaneTable& table, const OpGraph& graph);

  bool are_there() const { return are_there_; }
  bool is_missing(std::size_t dp_rank, std::size_t stage) const { return is_missing_[dp_rank * pp_size_ + stage]; }
  /// Of the op's own worker in that lane.
  bool is_missing(OpIndex op, std::size_t lane) const {
    return are_there_ && is_missing(lane % table_.dp_size(), static_cast<std::size_t>(graph_.op(op).stage));
  }
  /// True where the missing worker of that lane has the op: its dp rank has the microbatch, or, where that is not
  /// known, half of the others of its stage have the op in the same step.
  bool has(OpIndex op, std::size_t lane) const;
  /// What the op, no communication, takes the faster half of the others of the stage, times what the lane's microbatch
  /// takes elsewhere in the lane of what it takes there in other steps.
  double duration_ns(OpIndex op, std::size_t lane);
  std::size_t pp_size() const { return pp_size_; }

 private:
  void index_microbatches();
  double usual_of_stage_ns(OpIndex op);
  double usual_ns(OpIndex op, std::size_t dp_rank);
  double microbatch_factor(OpIndex op, std::size_t lane);
  double median_of_lanes(OpIndex op, std::size_t first, std::size_t stride) const;

  const LaneTable& table_;
  const OpGraph& graph_;
  std::size_t pp_size_;
  std::vector<bool> is_missing_;                // [dp_rank · pp_size + stage]
  std::vector<std::size_t> recorded_of_stage_;  // workers
  bool are_there_ = false;
  std::vector<std::vector<bool>> microbatches_;  // by lane, of all that was recorded in it
  std::map<std::pair<Kind, std::int32_t>, std::vector<OpIndex>> ops_of_microbatch_;
  std::map<std::pair<OpIndex, std::size_t>, double> usual_;  // by op and dp rank
  std::map<OpIndex, double> usual_of_stage_;
};

/// Of an even count the smaller of the two middle values: some may be slow. 0 for no values. Reorders `values`.
double lower_median(std::vector<double>& values);

}  // namespace smon_rt::analysis
