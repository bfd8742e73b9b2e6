#pragma once

#include <span>
#include <vector>

#include "analysis/by_worker.h"
#include "analysis/cause.h"
#include "analysis/cause_basis.h"
#include "analysis/explained_delays.h"
#include "analysis/job_edit.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// What the host costs: `gc`, `data_loading`, `checkpoint` (those that occur; gc always), each the job as recorded
/// where that work takes no time, nor the launch delays that it explains; and `host_launch_delay`, without the delays
/// that nothing explains. With the place where one alone gives back 80 % of that: a worker (dp_rank, stage), the
/// workers of a dp rank (dp_rank), or several workers that have much more of it than is usual (`workers`).
///
/// A worker's launch delays are those beyond its peers', the other workers of its stage (the other stages with one dp
/// rank), kind by kind. Where they give back half of all or more, but not 80 %, there are two causes of that name: the
/// worker, and what the other delays give back after that.
///
/// Detail: of work that has no place `worker_s_per_step`, seconds a step that a worker spends in it, on average; of a
/// place `ratio`, how many times as long it takes as the median of the others', where they have any.
std::vector<CauseRemoval> host_causes(const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                                      const CauseBasis& basis, ReplayCounter& counter);

/// At most; how many it takes depends on what it finds.
inline constexpr int kHostCauseReplays = 3 * 4 + 3 + 5;

/// The work at a place takes no time, and launches there wait for none of it.
void remove_host_work(JobEdit& edit, const WhatIf& what_if, std::span<const ExplainedDelay> explained, HostWork work,
                      HostPlace place);

/// A worker's launch delays become its peers', as far as nothing explains them. `edit` is of the job with its delays.
void repair_launch_delays(JobEdit& edit, const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                          std::size_t dp_rank, std::size_t stage);

}  // namespace smon_rt::analysis
