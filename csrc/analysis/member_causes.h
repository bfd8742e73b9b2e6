#pragma once

#include <span>
#include <vector>

#include "analysis/cause.h"
#include "analysis/cause_basis.h"
#include "analysis/member_excess.h"
#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// What slow members of workers cost: a `tensor_parallel_member` for the worker whose member costs most, and for others
/// that give back 1.5 % of the step or more. Where none gives back 80 % of what all together do, they are one cause,
/// with all of them in `workers`. None where no worker has a slow member.
std::vector<CauseRemoval> member_causes(const WhatIf& what_if, std::span<const MemberExcess> excess,
                                        const CauseBasis& basis, ReplayCounter& counter);

/// At most; how many it takes depends on what it finds.
inline constexpr int kMemberCauseReplays = 4;

}  // namespace smon_rt::analysis
