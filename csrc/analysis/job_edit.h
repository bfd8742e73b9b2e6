#pragma once

#include <utility>
#include <vector>

#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// A job as recorded, launch delays included (or without them), with the times of some ops changed. Rows of ops that
/// nobody changes stay those of the recording; a changed one is a copy, so that changes add up.
class JobEdit {
 public:
  /// Borrows the job's timing.
  explicit JobEdit(const WhatIf& what_if, bool has_launch_delays = true);

  /// The op's own durations or launch delays, one per lane, to be changed; the latter only where there are any.
  double* durations_ns(OpIndex op) { return own_row(op, scenario_.durations, own_durations_); }
  double* launch_delays_ns(OpIndex op) { return own_row(op, scenario_.launch_delays, own_delays_); }

  const Scenario& scenario() const { return scenario_; }
  /// Ends the editing.
  Scenario take() && { return std::move(scenario_); }

 private:
  double* own_row(OpIndex op, std::vector<OpValues>& values, std::vector<double*>& own);

  std::size_t lane_count_;
  Scenario scenario_;
  std::vector<double*> own_durations_;  // per op; null: as recorded
  std::vector<double*> own_delays_;
};

}  // namespace smon_rt::analysis
