#pragma once

#include <cstddef>
#include <vector>

#include "analysis/op_graph.h"

namespace smon_rt::analysis {

/// Some workers: all, those of a dp rank, or one.
struct HostPlace {
  int dp_rank = -1;
  int stage = -1;

  bool has_lane(std::size_t lane, std::size_t dp_size) const {
    return dp_rank < 0 || lane % dp_size == static_cast<std::size_t>(dp_rank);
  }
  bool has(const Op& op) const { return stage < 0 || op.stage == stage; }
};

/// A value of each worker, as the time that it spends in something, and how it compares with others'.
class ByWorker {
 public:
  ByWorker(std::size_t dp_size, std::size_t pp_size)
      : dp_size_(dp_size), pp_size_(pp_size), values_(dp_size * pp_size) {}

  double& at(std::size_t dp_rank, std::size_t stage) { return values_[dp_rank * pp_size_ + stage]; }
  double at(std::size_t dp_rank, std::size_t stage) const { return values_[dp_rank * pp_size_ + stage]; }

  /// The median of the others of its stage; with one dp rank, of the other stages.
  double of_peers(std::size_t dp_rank, std::size_t stage) const;
  /// The median of all other workers, or of the sums of all other dp ranks.
  double of_others(HostPlace place) const;
  double mean_of_all() const;
  /// Of a worker, or the sum of a dp rank.
  double of(HostPlace place) const;

  HostPlace largest() const;
  HostPlace largest_dp_rank() const;
  /// Several workers, up to half of those that were recorded, that have so many times as much as is usual, the one with
  /// the most first; none where it is one or more than half.
  std::vector<HostPlace> standing_out(double ratio, const std::vector<bool>& is_recorded) const;

  /// How many times as much a group's workers have as the others, median over median; 0 where the others have none.
  double ratio_of(const std::vector<HostPlace>& group) const;

 private:
  std::vector<double> by_dp_rank() const;

  std::size_t dp_size_;
  std::size_t pp_size_;
  std::vector<double> values_;
};

}  // namespace smon_rt::analysis
