#pragma once

#include "analysis/compute_factors.h"
#include "analysis/job_edit.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// The microbatches of a step are dealt to its dp ranks anew, longest first, each to the rank with the least to do that
/// still has room; a rank keeps as many as it had, and runs its longest first. What is no microbatch's own, the speed
/// of the worker and the noise, stays where it is.
void rebalance_microbatches(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors);

}  // namespace smon_rt::analysis
