#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "analysis/job_edit.h"
#include "analysis/op_graph.h"
#include "analysis/op_timing.h"

namespace smon_rt::analysis {

/// What a compute of a worker takes longer because one of its tp or cp members is slow: the others stand still in
/// their collectives until that one comes. Found where the members' own times are (OpColumns::member_excess_ns).
struct MemberExcess {
  OpIndex op = 0;
  std::uint32_t lane = 0;
  double ns = 0;
};

/// Never more than what the op took: work of the host that was inside may have been taken out of it.
void bound_by_durations(std::vector<MemberExcess>& excess, const OpTiming& timing);

/// A copy in which each worker's members are alike. What tells slow workers apart is found in that one: a worker that
/// is slow because one of its members is, is no slow worker.
OpTiming with_equal_members(const OpTiming& timing, std::span<const MemberExcess> excess);

/// The computes of these workers, (dp_rank, stage), take as long as if their slow members came when the others do.
void repair_members(JobEdit& edit, const WhatIf& what_if, std::span<const MemberExcess> excess,
                    std::span<const std::pair<std::size_t, std::size_t>> workers);

}  // namespace smon_rt::analysis
