#include "analysis/waits_for_missing.h"

#include <algorithm>

namespace smon_rt::analysis {
namespace {

bool is_pass(Kind kind) {
  return kind == Kind::kForwardCompute || kind == Kind::kBackwardCompute || kind == Kind::kForwardBackwardCombined;
}

bool is_dp_collective(Kind kind) {
  return kind == Kind::kParamsAllGather || kind == Kind::kGradsReduceScatter || kind == Kind::kGradsAllReduce ||
         kind == Kind::kSeparateGradsAllReduce;
}

bool computes(const WhatIf& what_if, OpIndex op, std::size_t dp_rank) {
  const OpTiming& timing = what_if.timing();
  for (std::size_t lane = dp_rank; lane < timing.lane_count; lane += what_if.dp_size()) {
    if (timing.counted.has(op, lane) && timing.durations(op)[lane] > 0) return true;
  }
  return false;
}

// Workers without any compute, [dp_rank · pp_size + stage].
std::vector<bool> missing_workers(const WhatIf& what_if) {
  std::vector<bool> is_missing(what_if.dp_size() * what_if.pp_size(), true);
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    if (!is_pass(what_if.graph().op(op).kind)) continue;
    const auto stage = static_cast<std::size_t>(what_if.graph().op(op).stage);
    for (std::size_t dp_rank = 0; dp_rank < what_if.dp_size(); ++dp_rank) {
      const std::size_t worker = dp_rank * what_if.pp_size() + stage;
      if (is_missing[worker] && computes(what_if, op, dp_rank)) is_missing[worker] = false;
    }
  }
  return is_missing;
}

// dp ranks in which the group has a partner that is missing.
std::vector<bool> ranks_that_wait(const WhatIf& what_if, const Group& group, const std::vector<bool>& is_missing) {
  std::vector<bool> waits(what_if.dp_size(), false);
  for (OpIndex member : group.members) {
    const auto stage = static_cast<std::size_t>(what_if.graph().op(member).stage);
    for (std::size_t dp_rank = 0; dp_rank < waits.size(); ++dp_rank) {
      if (!is_missing[dp_rank * what_if.pp_size() + stage]) continue;
      for (std::size_t other = 0; other < waits.size(); ++other) {
        if (group.joins(dp_rank, other)) waits[other] = true;
      }
    }
  }
  return waits;
}

}  // namespace

WaitsForMissing::WaitsForMissing(const WhatIf& what_if) {
  const std::vector<bool> is_missing = missing_workers(what_if);
  are_there_ = std::find(is_missing.begin(), is_missing.end(), true) != is_missing.end();
  if (!are_there_) return;
  for (const Group& group : what_if.graph().groups()) shorten(what_if, group, is_missing);
  // A collective of which no partner is left begins with its last one, as far as can be told: its delay is the wait.
  const auto has_missing = [&](std::size_t worker) {
    for (; worker < is_missing.size(); worker += what_if.pp_size()) {
      if (is_missing[worker]) return true;
    }
    return false;
  };
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& it = what_if.graph().op(op);
    const bool is_alone = is_dp_collective(it.kind) && !what_if.graph().is_communication(op);
    if (is_alone && has_missing(static_cast<std::size_t>(it.stage))) at_once_.push_back(op);
  }
}

void WaitsForMissing::shorten(const WhatIf& what_if, const Group& group, const std::vector<bool>& is_missing) {
  const std::vector<bool> waits = ranks_that_wait(what_if, group, is_missing);
  if (std::find(waits.begin(), waits.end(), true) == waits.end()) return;
  for (OpIndex member : group.members) {
    const double* recorded = what_if.timing().durations(member);
    std::vector<double> durations_ns(recorded, recorded + what_if.timing().lane_count);
    for (std::size_t lane = 0; lane < durations_ns.size(); ++lane) {
      if (!waits[lane % waits.size()]) continue;
      durations_ns[lane] = std::min(durations_ns[lane], what_if.ideal_durations()[member]);
    }
    without_waits_.emplace_back(member, std::move(durations_ns));
    // Who began late in such a group may have waited for the missing one before: nothing recorded tells.
    const double* delays = what_if.timing().launch_delays(member);
    std::vector<double> delays_ns(delays, delays + what_if.timing().lane_count);
    for (std::size_t lane = 0; lane < delays_ns.size(); ++lane) {
      if (waits[lane % waits.size()]) delays_ns[lane] = std::min(delays_ns[lane], 0.0);
    }
    without_delays_.emplace_back(member, std::move(delays_ns));
  }
}

void WaitsForMissing::take_out(Scenario& scenario) const {
  for (const auto& [op, durations_ns] : without_waits_) scenario.durations[op] = {durations_ns.data(), 0, nullptr};
  if (scenario.launch_delays.empty()) return;
  for (const auto& [op, delays_ns] : without_delays_) scenario.launch_delays[op] = {delays_ns.data(), 0, nullptr};
  for (OpIndex op : at_once_) scenario.launch_delays[op] = OpValues{};
}

}  // namespace smon_rt::analysis
