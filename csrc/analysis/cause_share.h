#pragma once

#include <vector>

#include "analysis/statistics.h"

namespace smon_rt::analysis {

/// Half of what a cause must give back to be named: with less, nobody asks where it is.
inline constexpr double kWorthPlacingRatio = 0.015;
/// One place stands for a cause when it alone gives back this much of its gain.
inline constexpr double kOnePlaceShare = 0.8;

inline double gain_ns(const std::vector<double>& recorded_step_ns, const std::vector<double>& step_ns) {
  return mean(recorded_step_ns) - mean(step_ns);
}

inline bool is_worth_placing(const std::vector<double>& recorded_step_ns, const std::vector<double>& step_ns) {
  return gain_ns(recorded_step_ns, step_ns) >= kWorthPlacingRatio * mean(recorded_step_ns);
}

}  // namespace smon_rt::analysis
