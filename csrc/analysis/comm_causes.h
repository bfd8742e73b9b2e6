#pragma once

#include <vector>

#include "analysis/cause.h"
#include "analysis/cause_basis.h"
#include "analysis/job_edit.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// What slow communication costs: `pp_communication` and `dp_communication`, each the job as recorded with its
/// transfers at the median of their kind. Where slowness has a place, the place instead:
/// - a link, which is two stages of one dp rank, whose transfers are divided by what they take more than those of the
///   other links, kind by kind (dp_rank, stage, peer_stage); or the links between two stages in all dp ranks
///   (stage, peer_stage);
/// - several links, up to half of all, that are about as much slower than the others as the slowest of them (`links`);
/// - the data-parallel groups of one stage against those of the other stages (stage).
/// A place is one when it alone gives back 80 % of what the whole does, a link when it is also slower than in the other
/// dp ranks. Detail: `ratio`, what a transfer takes there
/// over what it takes elsewhere; of links also `forward_ratio`, `backward_ratio`.
std::vector<CauseRemoval> comm_causes(const WhatIf& what_if, const CauseBasis& basis, ReplayCounter& counter);

/// At most; how many it takes depends on what it finds.
inline constexpr int kCommCauseReplays = 6;

/// What the op takes in the ideal job, in each lane. Where it may have waited for who was not recorded
/// (waits_for_missing.h), what was recorded without what the same op takes more than its ideal in the other lanes.
void take_ideal(const WhatIf& what_if, OpIndex op, double* durations_ns);

/// Divides the transfers of the links between two stages, of one dp rank or of all (-1), by what they take more than
/// those of other links. False where there are none.
bool repair_link(JobEdit& edit, const WhatIf& what_if, int dp_rank, int stage, int peer_stage);

/// Divides the transfers of a stage's data-parallel groups by what they take more than those of the other stages.
void repair_group(JobEdit& edit, const WhatIf& what_if, int stage);

}  // namespace smon_rt::analysis
