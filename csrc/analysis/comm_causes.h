#pragma once

#include <vector>

#include "analysis/cause.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// What slow communication costs: `pp_communication` and `dp_communication`, each the job as recorded with its
/// transfers at the median of their kind. Where slowness has a place, the place instead:
/// - a link, which is two stages of one dp rank, whose transfers are divided by what they take more than those of the
///   other links, kind by kind (dp_rank, stage, peer_stage); or the links between two stages in all dp ranks
///   (stage, peer_stage);
/// - the data-parallel groups of one stage against those of the other stages (stage).
/// A place is one when it alone gives back 80 % of what the whole does. Detail: `ratio`, what a transfer takes there
/// over what it takes elsewhere; of links also `forward_ratio`, `backward_ratio`.
///
/// `recorded_step_ns`: the steps of a replay of what_if.recorded().
std::vector<CauseRemoval> comm_causes(const WhatIf& what_if, const std::vector<double>& recorded_step_ns,
                                      ReplayCounter& counter);

/// At most; how many it takes depends on what it finds.
inline constexpr int kCommCauseReplays = 5;

}  // namespace smon_rt::analysis
