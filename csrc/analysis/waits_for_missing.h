#pragma once

#include <utility>
#include <vector>

#include "analysis/simulator.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// Who communicated with a worker that was not recorded waited for it: what that worker did is in its transfers, and no
/// repair of computes would shorten it. Where gains of computes are asked for, such transfers take what they usually
/// do, before and after.
class WaitsForMissing {
 public:
  explicit WaitsForMissing(const WhatIf& what_if);

  /// False where all workers were recorded.
  bool are_there() const { return are_there_; }
  /// `scenario` borrows from this.
  void take_out(Scenario& scenario) const;

 private:
  void shorten(const WhatIf& what_if, const Group& group, const std::vector<bool>& is_missing);

  bool are_there_ = false;
  std::vector<std::pair<OpIndex, std::vector<double>>> without_waits_;  // durations, by lane
  std::vector<std::pair<OpIndex, std::vector<double>>> without_delays_;
  std::vector<OpIndex> at_once_;  // without launch delays
};

}  // namespace smon_rt::analysis
