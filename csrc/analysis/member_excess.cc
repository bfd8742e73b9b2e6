#include "analysis/member_excess.h"

#include <algorithm>

namespace smon_rt::analysis {
namespace {

LaneBuffer copy_of(const LaneBuffer& values) {
  LaneBuffer copy(values.size());
  std::copy_n(values.data(), values.size(), copy.data());
  return copy;
}

}  // namespace

void bound_by_durations(std::vector<MemberExcess>& excess, const OpTiming& timing) {
  for (MemberExcess& each : excess) each.ns = std::min(each.ns, timing.durations(each.op)[each.lane]);
  std::erase_if(excess, [](const MemberExcess& each) { return each.ns <= 0; });
}

OpTiming with_equal_members(const OpTiming& timing, std::span<const MemberExcess> excess) {
  OpTiming repaired;
  repaired.durations_ns = copy_of(timing.durations_ns);
  repaired.launch_delays_ns = copy_of(timing.launch_delays_ns);
  repaired.lane_count = timing.lane_count;
  repaired.counted = timing.counted;
  repaired.takes_part = timing.takes_part;
  repaired.complete = timing.complete;
  for (const MemberExcess& each : excess) {
    repaired.durations_ns.data()[each.op * timing.lane_count + each.lane] -= each.ns;
  }
  return repaired;
}

void repair_members(JobEdit& edit, const WhatIf& what_if, std::span<const MemberExcess> excess,
                    std::span<const std::pair<std::size_t, std::size_t>> workers) {
  for (const MemberExcess& each : excess) {
    const std::pair worker{each.lane % what_if.dp_size(), static_cast<std::size_t>(what_if.graph().op(each.op).stage)};
    if (std::find(workers.begin(), workers.end(), worker) == workers.end()) continue;
    edit.durations_ns(each.op)[each.lane] -= each.ns;
  }
}

}  // namespace smon_rt::analysis
