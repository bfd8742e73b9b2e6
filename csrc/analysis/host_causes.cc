#include "analysis/host_causes.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "analysis/cause_share.h"
#include "analysis/job_edit.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

constexpr std::array<std::pair<HostWork, const char*>, 3> kNamedWork = {{
    {HostWork::kGc, "gc"},
    {HostWork::kDataLoading, "data_loading"},
    {HostWork::kCheckpoint, "checkpoint"},
}};
// One worker's delays have a cause of their own when they are this part of all.
constexpr double kOwnCauseShare = 0.5;
// Of those whose delays exceed their peers' most, so many are replayed: delays are waits for the most part, and do not
// tell whose they are.
constexpr std::size_t kDelayCandidates = 2;

// Some workers: all, those of a dp rank, or one.
struct Place {
  int dp_rank = -1;
  int stage = -1;

  bool has_lane(std::size_t lane, std::size_t dp_size) const {
    return dp_rank < 0 || lane % dp_size == static_cast<std::size_t>(dp_rank);
  }
  bool has(const Op& op) const { return stage < 0 || op.stage == stage; }
};

CauseRemoval removal_at(const char* cause, Place place) {
  CauseRemoval removal;
  removal.cause = cause;
  removal.dp_rank = place.dp_rank;
  removal.stage = place.stage;
  if (place.stage >= 0) {
    removal.workers.emplace_back(static_cast<std::size_t>(place.dp_rank), static_cast<std::size_t>(place.stage));
  }
  return removal;
}

// Values of all workers, and the median of a worker's peers.
class ByWorker {
 public:
  ByWorker(std::size_t dp_size, std::size_t pp_size)
      : dp_size_(dp_size), pp_size_(pp_size), values_(dp_size * pp_size) {}

  double& at(std::size_t dp_rank, std::size_t stage) { return values_[dp_rank * pp_size_ + stage]; }

  double of_peers(std::size_t dp_rank, std::size_t stage) const {
    std::vector<double> others;
    for (std::size_t other = 0; dp_size_ > 1 && other < dp_size_; ++other) {
      if (other != dp_rank) others.push_back(values_[other * pp_size_ + stage]);
    }
    for (std::size_t other = 0; dp_size_ == 1 && other < pp_size_; ++other) {
      if (other != stage) others.push_back(values_[other]);
    }
    return median(others);
  }

  Place largest() const {
    const auto found = std::max_element(values_.begin(), values_.end()) - values_.begin();
    const auto pp_size = static_cast<std::ptrdiff_t>(pp_size_);
    return {static_cast<int>(found / pp_size), static_cast<int>(found % pp_size)};
  }

  Place largest_dp_rank() const {
    std::vector<double> sums(dp_size_);
    for (std::size_t i = 0; i < values_.size(); ++i) sums[i / pp_size_] += values_[i];
    return {static_cast<int>(std::max_element(sums.begin(), sums.end()) - sums.begin()), -1};
  }

 private:
  std::size_t dp_size_;
  std::size_t pp_size_;
  std::vector<double> values_;
};

class HostCauses {
 public:
  HostCauses(const WhatIf& what_if, std::span<const ExplainedDelay> explained, const HostReferences& references,
             ReplayCounter& counter)
      : what_if_(what_if), explained_(explained), references_(references), counter_(counter) {}

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
      nothing.step_ns = references_.recorded_step_ns;
      return result_.push_back(std::move(nothing));
    }
    auto whole = replayed(removal_at(cause, {}), without(work, {}).scenario());
    if (!whole) return;
    if (what_if_.dp_size() * what_if_.pp_size() > 1 && is_worth_placing(references_.recorded_step_ns, whole->step_ns)) {
      if (auto placed = placed_work(work, cause, *whole)) whole = std::move(placed);
    }
    result_.push_back(std::move(*whole));
  }

  std::optional<CauseRemoval> placed_work(HostWork work, const char* cause, const CauseRemoval& whole) {
    ByWorker spent = time_spent(work);
    const Place worker = spent.largest();
    auto one = replayed(removal_at(cause, worker), without(work, worker).scenario());
    if (!one || stands_for(*one, whole)) {
      if (one) say_ratio(*one, spent);
      return one;
    }
    if (what_if_.dp_size() == 1 || what_if_.pp_size() == 1) return std::nullopt;
    const Place dp_rank = spent.largest_dp_rank();
    auto all_of_it = replayed(removal_at(cause, dp_rank), without(work, dp_rank).scenario());
    return all_of_it && stands_for(*all_of_it, whole) ? std::move(all_of_it) : std::nullopt;
  }

  ByWorker time_spent(HostWork work) const {
    ByWorker spent(what_if_.dp_size(), what_if_.pp_size());
    const OpTiming& timing = what_if_.timing();
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      if (host_work_of(what_if_.graph().op(op).kind) != work) continue;
      const auto stage = static_cast<std::size_t>(what_if_.graph().op(op).stage);
      for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
        if (timing.takes_part.has(op, lane)) spent.at(lane % what_if_.dp_size(), stage) += timing.durations(op)[lane];
      }
    }
    return spent;
  }

  void say_ratio(CauseRemoval& removal, ByWorker& by_worker) const {
    const auto dp_rank = static_cast<std::size_t>(removal.dp_rank);
    const auto stage = static_cast<std::size_t>(removal.stage);
    const double peers = by_worker.of_peers(dp_rank, stage);
    if (peers > 0) removal.detail.emplace_back("ratio", by_worker.at(dp_rank, stage) / peers);
  }

  std::optional<CauseRemoval> replayed(CauseRemoval removal, const Scenario& scenario) {
    if (!counter_.next()) return std::nullopt;
    removal.step_ns = what_if_.simulator().replay(scenario).last;
    return removal;
  }

  bool stands_for(const CauseRemoval& place, const CauseRemoval& whole) const {
    return gain_of(place) >= kOnePlaceShare * gain_of(whole);
  }

  double gain_of(const CauseRemoval& removal) const { return gain_ns(references_.recorded_step_ns, removal.step_ns); }

  // The work at a place takes no time, and launches there wait for none of it.
  JobEdit without(HostWork work, Place place) const {
    JobEdit edit(what_if_);
    const std::size_t dp_size = what_if_.dp_size();
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      const Op& self = what_if_.graph().op(op);
      if (host_work_of(self.kind) != work || !place.has(self)) continue;
      double* durations = edit.durations_ns(op);
      for (std::size_t lane = 0; lane < what_if_.timing().lane_count; ++lane) {
        if (place.has_lane(lane, dp_size)) durations[lane] = 0;
      }
    }
    for (const ExplainedDelay& delay : explained_) {
      if (!place.has(what_if_.graph().op(delay.op)) || !place.has_lane(delay.lane, dp_size)) continue;
      const double part = delay.by_work_ns[static_cast<std::size_t>(work)];
      if (part > 0) edit.launch_delays_ns(delay.op)[delay.lane] -= part;
    }
    return edit;
  }

  void find_launch_delays() {
    auto whole = without_launch_delays();
    if (!whole) return;
    std::optional<CauseRemoval> one;
    if (what_if_.dp_size() * what_if_.pp_size() > 1 && is_worth_placing(references_.recorded_step_ns, whole->step_ns)) {
      one = worker_with_most_delay();
      if (counter_.stopped()) return;
    }
    if (!one || gain_of(*one) < kOwnCauseShare * gain_of(*whole)) return result_.push_back(std::move(*whole));
    if (!stands_for(*one, *whole)) {
      // What is left: the steps without all of them are as much shorter than those without the worker's.
      for (std::size_t step = 0; step < whole->step_ns.size(); ++step) {
        whole->step_ns[step] += references_.recorded_step_ns[step] - one->step_ns[step];
      }
      result_.push_back(std::move(*whole));
    }
    result_.push_back(std::move(*one));
  }

  std::optional<CauseRemoval> without_launch_delays() {
    CauseRemoval removal = removal_at("host_launch_delay", {});
    if (explained_.empty()) {
      removal.step_ns = references_.nodelay_step_ns;
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
    return replayed(std::move(removal), scenario);
  }

  std::optional<CauseRemoval> worker_with_most_delay() {
    take_unexplained();
    std::vector<std::pair<double, Place>> candidates;
    for (std::size_t dp_rank = 0; dp_rank < what_if_.dp_size(); ++dp_rank) {
      for (std::size_t stage = 0; stage < what_if_.pp_size(); ++stage) {
        double excess = 0;
        for (ByWorker& delays : unexplained_) {
          excess += std::max(0.0, delays.at(dp_rank, stage) - delays.of_peers(dp_rank, stage));
        }
        candidates.push_back({excess, {static_cast<int>(dp_rank), static_cast<int>(stage)}});
      }
    }
    const std::size_t count = std::min(kDelayCandidates, candidates.size());
    std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(count), candidates.end(),
                      [](const auto& a, const auto& b) { return a.first > b.first; });
    std::optional<CauseRemoval> best;
    for (std::size_t i = 0; i < count && candidates[i].first > 0; ++i) {
      const Place place = candidates[i].second;
      auto removal = replayed(removal_at("host_launch_delay", place), with_delays_of_peers(place).scenario());
      if (!removal) return best;
      if (!best || gain_of(*removal) > gain_of(*best)) best = std::move(removal);
    }
    return best;
  }

  // Positive launch delays without what explains them, by kind.
  void take_unexplained() {
    unexplained_.assign(kKindCount, ByWorker(what_if_.dp_size(), what_if_.pp_size()));
    const OpTiming& timing = what_if_.timing();
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      const Op& self = what_if_.graph().op(op);
      ByWorker& delays = unexplained_[static_cast<std::size_t>(self.kind)];
      for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
        const double delay = timing.launch_delays(op)[lane];
        if (delay > 0) delays.at(lane % what_if_.dp_size(), static_cast<std::size_t>(self.stage)) += delay;
      }
    }
    for (const ExplainedDelay& delay : explained_) {
      const Op& self = what_if_.graph().op(delay.op);
      unexplained_[static_cast<std::size_t>(self.kind)].at(delay.lane % what_if_.dp_size(),
                                                           static_cast<std::size_t>(self.stage)) -= delay.total_ns();
    }
  }

  JobEdit with_delays_of_peers(Place place) {
    JobEdit edit(what_if_);
    const std::size_t dp_size = what_if_.dp_size();
    const auto dp_rank = static_cast<std::size_t>(place.dp_rank);
    const auto stage = static_cast<std::size_t>(place.stage);
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      const Op& self = what_if_.graph().op(op);
      if (!place.has(self)) continue;
      ByWorker& delays = unexplained_[static_cast<std::size_t>(self.kind)];
      const double own = delays.at(dp_rank, stage);
      const double peers = delays.of_peers(dp_rank, stage);
      if (!(own > peers)) continue;
      double* row = edit.launch_delays_ns(op);
      for (std::size_t lane = dp_rank; lane < what_if_.timing().lane_count; lane += dp_size) {
        const double delay = what_if_.timing().launch_delays(op)[lane];
        if (delay > 0) row[lane] -= (delay - explained_ns(op, lane)) * (1 - std::max(peers, 0.0) / own);
      }
    }
    return edit;
  }

  double explained_ns(OpIndex op, std::size_t lane) const {
    const auto found = std::lower_bound(explained_.begin(), explained_.end(), std::pair{op, lane},
                                        [](const ExplainedDelay& delay, const auto& key) {
                                          return std::pair{delay.op, std::size_t{delay.lane}} < key;
                                        });
    return found != explained_.end() && found->op == op && found->lane == lane ? found->total_ns() : 0;
  }

  const WhatIf& what_if_;
  std::span<const ExplainedDelay> explained_;
  const HostReferences& references_;
  ReplayCounter& counter_;
  std::vector<ByWorker> unexplained_;  // by kind
  std::vector<CauseRemoval> result_;
};

}  // namespace

std::vector<CauseRemoval> host_causes(const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                                      const HostReferences& references, ReplayCounter& counter) {
  return HostCauses(what_if, explained, references, counter).find();
}

}  // namespace smon_rt::analysis
