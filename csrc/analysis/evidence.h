#pragma once

#include <vector>

#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// How forward and backward of the same microbatch vary together within workers. NaN where nothing varies or pairs up.
/// Both high: microbatches differ in length. A correlation alone says little (whatif.md, "Causes").
struct ForwardBackward {
  double correlation = 0;  // Pearson, of the deviations from each worker's own mean
  double forward_cv = 0;   // standard deviation of forwards relative to their worker's mean
};

ForwardBackward forward_backward(const WhatIf& what_if);

/// Median duration of a kind on each worker in nanoseconds, [dp_rank · pp_size + stage]; NaN for a worker without any.
std::vector<double> worker_medians_ns(const WhatIf& what_if, Kind kind);

}  // namespace smon_rt::analysis
