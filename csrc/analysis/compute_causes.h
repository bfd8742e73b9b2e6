#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "analysis/cause.h"
#include "analysis/cause_basis.h"
#include "analysis/compute_factors.h"
#include "analysis/job_edit.h"
#include "analysis/member_excess.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// Divide some computes by their own factor: of workers, of a stage, of each microbatch. Edits add up.
void repair_workers(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors,
                    std::span<const std::pair<std::size_t, std::size_t>> workers);
void repair_stage(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors, std::size_t stage);
void even_out_microbatches(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors);

/// The job, with or without its launch delays, so edited and nothing else changed.
Scenario without_slow_workers(const WhatIf& what_if, const ComputeFactors& factors,
                              std::span<const std::pair<std::size_t, std::size_t>> workers, bool has_launch_delays);
Scenario without_slow_stage(const WhatIf& what_if, const ComputeFactors& factors, std::size_t stage,
                            bool has_launch_delays);
Scenario with_even_microbatches(const WhatIf& what_if, const ComputeFactors& factors, bool has_launch_delays);
/// Without what no other factor explains; microbatches, too, are as long as the median one where they are noise.
/// `excess` is what the factors were told without, and stays.
Scenario without_noise(const WhatIf& what_if, const ComputeFactors& factors, bool has_launch_delays,
                       std::span<const MemberExcess> excess = {});

/// What slow computes cost: `worker`, `stage`, `sequence_length` (where there is evidence for it) and `noise`.
///
/// worker: the one that costs most, and others that stand out and give back 1.5 % of the step or more. Where none gives
/// back 80 % of what all that stand out do, they are one cause, with all of them in `workers`. stage: likewise, but
/// never several as one. With one dp rank a worker and its stage are the same ops: the last stage is a stage, since it
/// computes the loss, any other a worker.
///
/// Detail: of worker and stage `forward_compute_ratio` and `backward_compute_ratio`, of a worker whose optimizer is
/// slow `optimizer_ratio`; of sequence_length and noise `correlation` and `forward_cv` of the microbatches.
///
/// `excess`: what slow members of workers add to computes. `factors` are those of the job without it
/// (with_equal_members), since that is a cause of its own (member_causes.h).
std::vector<CauseRemoval> compute_causes(const WhatIf& what_if, const ComputeFactors& factors, const CauseBasis& basis,
                                         ReplayCounter& counter, std::span<const MemberExcess> excess = {});

/// At most; how many it takes depends on what it finds.
inline constexpr int kComputeCauseReplays = 8;

}  // namespace smon_rt::analysis
