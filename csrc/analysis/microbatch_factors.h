#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/job_edit.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// What each microbatch takes of what a usual one does, common to all stages that it passes: the median over them of
/// its time relative to that worker's (and chunk's) median. What is left within a stage is noise, and no microbatch's.
class MicrobatchFactors {
 public:
  explicit MicrobatchFactors(const WhatIf& what_if);

  /// Each microbatch becomes a usual one.
  void even_out(JobEdit& edit) const;
  /// The microbatches of a step are dealt to its dp ranks anew, longest first, each to the rank with the least to do
  /// that still has room; a rank keeps as many as it had, and runs its longest first. What is no microbatch's own, the
  /// worker's speed and the noise, stays where it is.
  void rebalance(JobEdit& edit) const;

 private:
  // The forwards or the backwards of one microbatch number, in all stages and chunks.
  struct Passes {
    std::vector<OpIndex> ops;
    std::vector<double> factors;  // per lane; 0: the lane has no such microbatch
  };
  struct Microbatch {
    Passes forward, backward;
  };
  struct Slot {
    std::size_t microbatch = 0;
    std::size_t lane = 0;
    double load = 0;
  };

  std::vector<Slot> slots_of_step(std::size_t first_lane) const;
  std::vector<std::vector<Slot>> deal(std::vector<Slot> slots) const;

  std::size_t dp_size_;
  std::size_t lane_count_;
  double forward_weight_ = 1;  // of a forward in what a microbatch takes
  double backward_weight_ = 1;
  std::vector<Microbatch> microbatches_;
};

}  // namespace smon_rt::analysis
