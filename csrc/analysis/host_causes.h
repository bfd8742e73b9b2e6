#pragma once

#include <span>
#include <vector>

#include "analysis/cause.h"
#include "analysis/explained_delays.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// Step times of replays that are known already.
struct HostReferences {
  const std::vector<double>& recorded_step_ns;  // of what_if.recorded()
  const std::vector<double>& nodelay_step_ns;   // of what_if.nodelay()
};

/// What the host costs: `gc`, `data_loading`, `checkpoint` (those that occur; gc always), each the job as recorded
/// where that work takes no time, nor the launch delays that it explains; and `host_launch_delay`, without the delays
/// that nothing explains. With the place where one alone gives back 80 % of that: a worker (dp_rank, stage) or the
/// workers of a dp rank (dp_rank).
///
/// A worker's launch delays are those beyond its peers', the other workers of its stage (the other stages with one dp
/// rank), kind by kind. Where they give back half of all or more, but not 80 %, there are two causes of that name: the
/// worker, and what the other delays give back after that.
///
/// Detail, of a place: `ratio`, how many times as long as the median of its peers' it takes a step, where they have
/// any.
std::vector<CauseRemoval> host_causes(const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                                      const HostReferences& references, ReplayCounter& counter);

/// At most; how many it takes depends on what it finds.
inline constexpr int kHostCauseReplays = 3 * 3 + 3;

}  // namespace smon_rt::analysis
