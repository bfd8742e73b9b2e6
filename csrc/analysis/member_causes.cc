#include "analysis/member_causes.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace smon_rt::analysis {
namespace {

using Worker = std::pair<std::size_t, std::size_t>;

constexpr std::size_t kWorkersTried = 3;

// Those with the most excess first.
std::vector<Worker> workers_of(const WhatIf& what_if, std::span<const MemberExcess> excess) {
  std::vector<double> sums(what_if.dp_size() * what_if.pp_size(), 0);
  for (const MemberExcess& each : excess) {
    const auto stage = static_cast<std::size_t>(what_if.graph().op(each.op).stage);
    sums[each.lane % what_if.dp_size() * what_if.pp_size() + stage] += each.ns;
  }
  std::vector<Worker> workers;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] > 0) workers.emplace_back(i / what_if.pp_size(), i % what_if.pp_size());
  }
  const auto sum_of = [&](const Worker& worker) { return sums[worker.first * what_if.pp_size() + worker.second]; };
  std::stable_sort(workers.begin(), workers.end(),
                   [&](const Worker& a, const Worker& b) { return sum_of(a) > sum_of(b); });
  return workers;
}

}  // namespace

std::vector<CauseRemoval> member_causes(const WhatIf& what_if, std::span<const MemberExcess> excess,
                                        const CauseBasis& basis, ReplayCounter& counter) {
  const auto without = [&](std::span<const Worker> workers) -> std::optional<CauseRemoval> {
    if (!counter.next()) return std::nullopt;
    CauseRemoval removal;
    removal.cause = "tensor_parallel_member";
    removal.dp_rank = static_cast<int>(workers.front().first);
    removal.stage = static_cast<int>(workers.front().second);
    removal.workers.assign(workers.begin(), workers.end());
    JobEdit edit(what_if, basis.keeps_launch_delays);
    repair_members(edit, what_if, excess, workers);
    basis.set_steps(removal, basis.before_ns(), what_if.simulator().replay(edit.scenario()).last);
    return removal;
  };
  const std::vector<Worker> workers = workers_of(what_if, excess);
  std::vector<CauseRemoval> found;
  for (std::size_t i = 0; i < std::min(workers.size(), kWorkersTried); ++i) {
    auto removal = without({&workers[i], 1});
    if (!removal) return {};
    found.push_back(std::move(*removal));
  }
  std::stable_sort(found.begin(), found.end(),
                   [&](const CauseRemoval& a, const CauseRemoval& b) { return basis.gain_ns(a) > basis.gain_ns(b); });
  if (workers.size() > 1) {
    auto all = without(workers);
    if (!all) return {};
    if (basis.gain_ns(found.front()) < kOnePlaceShare * basis.gain_ns(*all)) found.assign(1, std::move(*all));
  }
  // The one that gives back most, and what else is worth a line.
  for (std::size_t i = found.size(); i-- > 1;) {
    if (!basis.is_worth_placing(found[i])) found.erase(found.begin() + static_cast<std::ptrdiff_t>(i));
  }
  return found;
}

}  // namespace smon_rt::analysis
