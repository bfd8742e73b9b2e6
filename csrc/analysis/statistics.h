#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace smon_rt::analysis {

/// 0 for no values.
double mean(std::span<const double> values);

/// Mean of the two middle values for an even count; 0 for no values. Reorders `values`.
double median(std::span<double> values);

/// Median of those that are finite; NaN where none is. The others are taken out.
double finite_median(std::vector<double>& values);

/// Standard deviations of a normal distribution in a median absolute deviation.
inline constexpr double kSigmaPerDeviation = 1.4826;

struct Interval {
  double low = 0;
  double high = 0;
  bool is_known = false;
};

/// 95 % interval of the mean of a per-step series by resampling blocks of neighbouring steps: neighbours are
/// correlated, single steps would make the interval too narrow. Blocks are the runs of consecutive step numbers when
/// there are 8 or more, else stretches of up to 5 steps, which go on around the end. Unknown for fewer than two steps.
/// Deterministic.
Interval bootstrap_mean(std::span<const double> values, std::span<const std::int64_t> steps);

}  // namespace smon_rt::analysis
