#pragma once

#include <cstddef>
#include <vector>

#include "analysis/cause.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {

/// Half of what a cause must give back to be named: with less, nobody asks where it is.
inline constexpr double kWorthPlacingRatio = 0.015;
/// One place stands for a cause when it alone gives back this much of its gain.
inline constexpr double kOnePlaceShare = 0.8;

/// What gains are measured against. Step times in nanoseconds.
struct CauseBasis {
  std::vector<double> base_step_ns;      // as recorded
  std::vector<double> recorded_step_ns;  // of a replay of what_if.recorded()
  std::vector<double> nodelay_step_ns;   // of a replay of what_if.nodelay()
  /// By the reference rules launch delays are waits for what was not recorded, as much as the host's: whoever is faster
  /// would still wait. Then gains are against the job without them.
  bool keeps_launch_delays = true;

  const std::vector<double>& before_ns() const { return keeps_launch_delays ? recorded_step_ns : nodelay_step_ns; }

  /// Fills in step times so that the recorded step minus them is what the replay gives back against `before`.
  void set_steps(CauseRemoval& removal, const std::vector<double>& before_ns, const std::vector<double>& after) const {
    removal.step_ns = base_step_ns;
    for (std::size_t step = 0; step < after.size(); ++step) removal.step_ns[step] -= before_ns[step] - after[step];
  }

  double gain_ns(const CauseRemoval& removal) const { return mean(base_step_ns) - mean(removal.step_ns); }
  bool is_worth_placing(const CauseRemoval& removal) const {
    return gain_ns(removal) >= kWorthPlacingRatio * mean(base_step_ns);
  }
  bool stands_for(const CauseRemoval& place, const CauseRemoval& whole) const {
    return is_worth_placing(place) && gain_ns(place) >= kOnePlaceShare * gain_ns(whole);
  }
};

}  // namespace smon_rt::analysis
