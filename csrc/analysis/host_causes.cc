#include "analysis/host_causes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "analysis/by_worker.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

constexpr std::array<std::pair<HostWork, const char*>, 3> kNamedWork = {{
    {HostWork::kGc, "gc"},
    {HostWork::kDataLoading, "data_loading"},
    {HostWork::kCheckpoint, "checkpoint"},
}};
// A place has a cause of its own when it has so many times as much work as the others usually have.
constexpr double kStandsOutRatio = 2;
// One worker's delays have a cause of their own when they are this part of all.
constexpr double kOwnCauseShare = 0.5;
// Of those whose delays exceed their peers' most, so many are replayed: delays are waits for the most part, and do not
// tell whose they are.
constexpr std::size_t kDelayCandidates = 2;
// Each of several places must have shown the work so often: who was met once or twice in a short recording is chance.
constexpr double kLeastOccurrences = 2.5;
// So many workers that launch late are told from those that wait for them, with a replay for each.
constexpr std::size_t kMostLateWorkers = 4;

CauseRemoval removal_at(const char* cause, HostPlace place) {
  CauseRemoval removal;
  removal.cause = cause;
  removal.dp_rank = place.dp_rank;
  removal.stage = place.stage;
  if (place.stage >= 0) {
    removal.workers.emplace_back(static_cast<std::size_t>(place.dp_rank), static_cast<std::size_t>(place.stage));
  }
  return removal;
}

// Of several workers, the one with the most first.
CauseRemoval removal_of(const char* cause, const std::vector<HostPlace>& group) {
  CauseRemoval removal = removal_at(cause, group.front());
  removal.workers.clear();
  for (HostPlace place : group) {
    removal.workers.emplace_back(static_cast<std::size_t>(place.dp_rank), static_cast<std::size_t>(place.stage));
  }
  return removal;
}

double explained_ns(std::span<const ExplainedDelay> explained, OpIndex op, std::size_t lane) {
  const auto found = std::lower_bound(
      explained.begin(), explained.end(), std::pair{op, lane},
      [](const ExplainedDelay& delay, const auto& key) { return std::pair{delay.op, std::size_t{delay.lane}} < key; });
  return found != explained.end() && found->op == op && found->lane == lane ? found->total_ns() : 0;
}

// Positive launch delays without what explains them, by kind.
class UnexplainedDelays {
 public:
  UnexplainedDelays(const WhatIf& what_if, std::span<const ExplainedDelay> explained)
      : delays_(kKindCount, ByWorker(what_if.dp_size(), what_if.pp_size())) {
    const OpTiming& timing = what_if.timing();
    for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
      const auto stage = static_cast<std::size_t>(what_if.graph().op(op).stage);
      for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
        const double delay = timing.launch_delays(op)[lane];
        if (delay > 0) of(what_if.graph().op(op).kind).at(lane % what_if.dp_size(), stage) += delay;
      }
    }
    for (const ExplainedDelay& delay : explained) {
      const Op& op = what_if.graph().op(delay.op);
      of(op.kind).at(delay.lane % what_if.dp_size(), static_cast<std::size_t>(op.stage)) -= delay.total_ns();
    }
  }

  // What a worker has more than its peers, over all kinds.
  double excess_ns(std::size_t dp_rank, std::size_t stage) const {
    double excess = 0;
    for (const ByWorker& delays : delays_) {
      excess += std::max(0.0, delays.at(dp_rank, stage) - delays.of_peers(dp_rank, stage));
    }
    return excess;
  }

  // The part of a worker's delays before a kind that it has beyond its peers.
  double excess_share(Kind kind, std::size_t dp_rank, std::size_t stage) const {
    const ByWorker& delays = delays_[static_cast<std::size_t>(kind)];
    const double own = delays.at(dp_rank, stage);
    const double peers = std::max(0.0, delays.of_peers(dp_rank, stage));
    return own > peers ? 1 - peers / own : 0;
  }

 private:
  ByWorker& of(Kind kind) { return delays_[static_cast<std::size_t>(kind)]; }

  std::vector<ByWorker> delays_;
};

void repair_launch_delays_of(JobEdit& edit, const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                             const UnexplainedDelays& delays, std::size_t dp_rank, std::size_t stage) {
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& self = what_if.graph().op(op);
    if (static_cast<std::size_t>(self.stage) != stage) continue;
    const double share = delays.excess_share(self.kind, dp_rank, stage);
    if (share == 0) continue;
    double* row = edit.launch_delays_ns(op);
    for (std::size_t lane = dp_rank; lane < what_if.timing().lane_count; lane += what_if.dp_size()) {
      const double delay = what_if.timing().launch_delays(op)[lane];
      if (delay > 0) row[lane] -= (delay - explained_ns(explained, op, lane)) * share;
    }
  }
}

class HostCauses {
 public:
  HostCauses(const WhatIf& what_if, std::span<const ExplainedDelay> explained, const CauseBasis& basis,
             ReplayCounter& counter)
      : what_if_(what_if), explained_(explained), basis_(basis), counter_(counter) {}

  std::vector<CauseRemoval> find() && {
    for (const auto& [work, cause] : kNamedWork) find_work(work, cause);
    find_launch_delays();
    return std::move(result_);
  }

 private:
  bool occurs(HostWork work) const {
    const std::vector<Op>& ops = what_if_.graph().ops();
    return std::any_of(ops.begin(), ops.end(), [&](const Op& op) { return host_work_of(op.kind) == work; });
  }

  void find_work(HostWork work, const char* cause) {
    if (!occurs(work)) {
      if (work != HostWork::kGc) return;
      CauseRemoval nothing = removal_at(cause, {});
      nothing.step_ns = basis_.base_step_ns;
      return result_.push_back(std::move(nothing));
    }
    auto whole = without(work, removal_at(cause, {}));
    if (!whole) return;
    const ByWorker spent = time_spent(work);
    whole->detail.emplace_back("worker_s_per_step",
                               spent.mean_of_all() / static_cast<double>(what_if_.step_count()) / 1e9);
    if (what_if_.dp_size() * what_if_.pp_size() > 1 && basis_.is_worth_placing(*whole)) {
      if (auto placed = placed_work(work, spent, *whole)) whole = std::move(placed);
    }
    result_.push_back(std::move(*whole));
  }

  // None where no place stands for the whole, or the work is about as long elsewhere: there it may be hidden only.
  std::optional<CauseRemoval> placed_work(HostWork work, const ByWorker& spent, const CauseRemoval& whole) {
    std::vector<HostPlace> places{spent.largest()};
    if (what_if_.dp_size() > 1 && what_if_.pp_size() > 1) places.push_back(spent.largest_dp_rank());
    for (HostPlace place : places) {
      if (spent.of(place) < kStandsOutRatio * spent.of_others(place)) continue;
      auto placed = without(work, removal_at(whole.cause.c_str(), place));
      if (!placed) return std::nullopt;
      if (!basis_.stands_for(*placed, whole)) continue;
      const double others = spent.of_others(place);
      if (others > 0) placed->detail.emplace_back("ratio", spent.of(place) / others);
      return placed;
    }
    return work_of_several(work, spent, whole);
  }

  std::optional<CauseRemoval> work_of_several(HostWork work, const ByWorker& spent, const CauseRemoval& whole) {
    const std::vector<HostPlace> group = spent.standing_out(kStandsOutRatio, recorded_workers());
    if (group.empty()) return std::nullopt;
    const ByWorker counts = occurrences(work, spent);
    const auto is_chance = [&](HostPlace place) { return counts.of(place) < kLeastOccurrences; };
    if (std::any_of(group.begin(), group.end(), is_chance)) return std::nullopt;
    JobEdit edit(what_if_, basis_.keeps_launch_delays);
    for (HostPlace place : group) remove_host_work(edit, what_if_, explained_, work, place);
    auto placed = replayed(removal_of(whole.cause.c_str(), group), edit.scenario(), basis_.before_ns());
    if (!placed || !basis_.stands_for(*placed, whole)) return std::nullopt;
    if (const double ratio = spent.ratio_of(group); ratio > 0) placed->detail.emplace_back("ratio", ratio);
    return placed;
  }

  // [dp_rank · pp_size + stage]: has any op.
  std::vector<bool> recorded_workers() const {
    std::vector<bool> is_recorded(what_if_.dp_size() * what_if_.pp_size(), false);
    const OpTiming& timing = what_if_.timing();
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      const auto stage = static_cast<std::size_t>(what_if_.graph().op(op).stage);
      for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
        const std::size_t worker = lane % what_if_.dp_size() * what_if_.pp_size() + stage;
        if (!is_recorded[worker] && timing.takes_part.has(op, lane)) is_recorded[worker] = true;
      }
    }
    return is_recorded;
  }

  ByWorker time_spent(HostWork work) const {
    return sum_of(work, [](double duration_ns) { return duration_ns; });
  }

  // How many equal ops would spread a worker's time as its own do (Kish's effective size, (Σx)² / Σx²): short ones that
  // are there in every step beside one long one are about one.
  ByWorker occurrences(HostWork work, const ByWorker& spent) const {
    ByWorker counts = sum_of(work, [](double duration_ns) { return duration_ns * duration_ns; });
    for (std::size_t dp_rank = 0; dp_rank < what_if_.dp_size(); ++dp_rank) {
      for (std::size_t stage = 0; stage < what_if_.pp_size(); ++stage) {
        double& count = counts.at(dp_rank, stage);
        const double sum_ns = spent.at(dp_rank, stage);
        count = count > 0 ? sum_ns * sum_ns / count : 0;
      }
    }
    return counts;
  }

  template <typename Value>
  ByWorker sum_of(HostWork work, Value value) const {
    ByWorker sums(what_if_.dp_size(), what_if_.pp_size());
    const OpTiming& timing = what_if_.timing();
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      if (host_work_of(what_if_.graph().op(op).kind) != work) continue;
      const auto stage = static_cast<std::size_t>(what_if_.graph().op(op).stage);
      for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
        if (timing.takes_part.has(op, lane))
          sums.at(lane % what_if_.dp_size(), stage) += value(static_cast<double>(timing.durations(op)[lane]));
      }
    }
    return sums;
  }

  std::optional<CauseRemoval> replayed(CauseRemoval removal, const Scenario& scenario,
                                       const std::vector<double>& before_ns) {
    if (!counter_.next()) return std::nullopt;
    basis_.set_steps(removal, before_ns, what_if_.simulator().replay(scenario).last);
    return removal;
  }

  std::optional<CauseRemoval> without(HostWork work, CauseRemoval removal) {
    JobEdit edit(what_if_, basis_.keeps_launch_delays);
    // What explains launch delays is known by the rules of ids only, and there delays are kept.
    remove_host_work(edit, what_if_, explained_, work, {removal.dp_rank, removal.stage});
    return replayed(std::move(removal), edit.scenario(), basis_.before_ns());
  }

  void find_launch_delays() {
    auto whole = without_launch_delays();
    if (!whole) return;
    if (what_if_.dp_size() * what_if_.pp_size() == 1 || !basis_.is_worth_placing(*whole)) {
      return result_.push_back(std::move(*whole));
    }
    const UnexplainedDelays delays(what_if_, explained_);
    std::optional<CauseRemoval> one = worker_with_most_delay(delays);
    if (counter_.stopped()) return;
    if (!one || basis_.gain_ns(*one) < kOwnCauseShare * basis_.gain_ns(*whole)) {
      auto several = late_workers(delays, *whole);
      return result_.push_back(std::move(several ? *several : *whole));
    }
    if (!basis_.stands_for(*one, *whole)) {
      // What is left: the steps without all of them are as much shorter than those without the worker's.
      for (std::size_t step = 0; step < whole->step_ns.size(); ++step) {
        whole->step_ns[step] += basis_.base_step_ns[step] - one->step_ns[step];
      }
      result_.push_back(std::move(*whole));
    }
    result_.push_back(std::move(*one));
  }

  std::optional<CauseRemoval> without_launch_delays() {
    CauseRemoval removal = removal_at("host_launch_delay", {});
    if (explained_.empty()) {
      basis_.set_steps(removal, basis_.recorded_step_ns, basis_.nodelay_step_ns);
      return removal;
    }
    Scenario scenario = what_if_.nodelay();
    scenario.launch_delays.resize(what_if_.graph().size());
    double* row = nullptr;
    for (std::size_t i = 0; i < explained_.size(); ++i) {
      const ExplainedDelay& delay = explained_[i];
      if (i == 0 || delay.op != explained_[i - 1].op) {
        row = scenario.owned_lanes.emplace_back(what_if_.timing().lane_count, 0.0).data();
        scenario.launch_delays[delay.op] = {row, 0, nullptr};
      }
      row[delay.lane] = delay.total_ns();
    }
    return replayed(std::move(removal), scenario, basis_.recorded_step_ns);
  }

  // Those with the most delay that together stand for all of it: who only waits for the others is taken out again.
  std::optional<CauseRemoval> late_workers(const UnexplainedDelays& delays, const CauseRemoval& whole) {
    ByWorker excess(what_if_.dp_size(), what_if_.pp_size());
    for (std::size_t dp_rank = 0; dp_rank < what_if_.dp_size(); ++dp_rank) {
      for (std::size_t stage = 0; stage < what_if_.pp_size(); ++stage) {
        excess.at(dp_rank, stage) = delays.excess_ns(dp_rank, stage);
      }
    }
    std::vector<HostPlace> group = excess.standing_out(kStandsOutRatio, recorded_workers());
    if (group.size() > kMostLateWorkers) group.resize(kMostLateWorkers);
    std::optional<CauseRemoval> found = group.empty() ? std::nullopt : without_delays_of(group, delays);
    if (!found || !basis_.stands_for(*found, whole)) return std::nullopt;
    for (std::size_t i = group.size(); i-- > 0 && group.size() > 2;) {
      std::vector<HostPlace> fewer = group;
      fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
      auto without_one = without_delays_of(fewer, delays);
      if (!without_one || !basis_.stands_for(*without_one, whole)) continue;
      group = std::move(fewer);
      found = std::move(without_one);
    }
    return found;
  }

  std::optional<CauseRemoval> without_delays_of(const std::vector<HostPlace>& group, const UnexplainedDelays& delays) {
    JobEdit edit(what_if_);
    for (HostPlace place : group) {
      repair_launch_delays_of(edit, what_if_, explained_, delays, static_cast<std::size_t>(place.dp_rank),
                              static_cast<std::size_t>(place.stage));
    }
    return replayed(removal_of("host_launch_delay", group), edit.scenario(), basis_.recorded_step_ns);
  }

  std::optional<CauseRemoval> worker_with_most_delay(const UnexplainedDelays& delays) {
    std::vector<std::pair<double, HostPlace>> candidates;
    for (std::size_t dp_rank = 0; dp_rank < what_if_.dp_size(); ++dp_rank) {
      for (std::size_t stage = 0; stage < what_if_.pp_size(); ++stage) {
        candidates.push_back({delays.excess_ns(dp_rank, stage), {static_cast<int>(dp_rank), static_cast<int>(stage)}});
      }
    }
    const std::size_t count = std::min(kDelayCandidates, candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count), candidates.end(),
                      [](const auto& a, const auto& b) { return a.first > b.first; });
    std::optional<CauseRemoval> best;
    for (std::size_t i = 0; i < count && candidates[i].first > 0; ++i) {
      const HostPlace place = candidates[i].second;
      auto removal = without_delays_of({place}, delays);
      if (!removal) return best;
      if (!best || basis_.gain_ns(*removal) > basis_.gain_ns(*best)) best = std::move(removal);
    }
    return best;
  }

  const WhatIf& what_if_;
  std::span<const ExplainedDelay> explained_;
  const CauseBasis& basis_;
  ReplayCounter& counter_;
  std::vector<CauseRemoval> result_;
};

}  // namespace

std::vector<CauseRemoval> host_causes(const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                                      const CauseBasis& basis, ReplayCounter& counter) {
  return HostCauses(what_if, explained, basis, counter).find();
}

void remove_host_work(JobEdit& edit, const WhatIf& what_if, std::span<const ExplainedDelay> explained, HostWork work,
                      HostPlace place) {
  const std::size_t dp_size = what_if.dp_size();
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& self = what_if.graph().op(op);
    if (host_work_of(self.kind) != work || !place.has(self)) continue;
    double* durations = edit.durations_ns(op);
    for (std::size_t lane = 0; lane < what_if.timing().lane_count; ++lane) {
      if (place.has_lane(lane, dp_size)) durations[lane] = 0;
    }
  }
  for (const ExplainedDelay& delay : explained) {
    if (!place.has(what_if.graph().op(delay.op)) || !place.has_lane(delay.lane, dp_size)) continue;
    const double part = delay.by_work_ns[static_cast<std::size_t>(work)];
    if (part > 0) edit.launch_delays_ns(delay.op)[delay.lane] -= part;
  }
}

void repair_launch_delays(JobEdit& edit, const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                          std::size_t dp_rank, std::size_t stage) {
  repair_launch_delays_of(edit, what_if, explained, UnexplainedDelays(what_if, explained), dp_rank, stage);
}

}  // namespace smon_rt::analysis
