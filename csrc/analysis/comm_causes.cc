#include "analysis/comm_causes.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "analysis/launch_order.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

constexpr std::array<Kind, 4> kMessages = {Kind::kForwardSend, Kind::kForwardRecv, Kind::kBackwardSend,
                                           Kind::kBackwardRecv};
using Kinds = std::array<Kind, 4>;
constexpr std::size_t kAllRows = static_cast<std::size_t>(-1);
// Several links are one cause where each takes this part of what the slowest takes more than the others.
constexpr double kOfTheLinksShare = 0.25;
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

std::optional<std::size_t> index_in(const Kinds& kinds, Kind kind) {
  const auto found = std::find(kinds.begin(), kinds.end(), kind);
  if (found == kinds.end()) return std::nullopt;
  return static_cast<std::size_t>(found - kinds.begin());
}

// The transfers of a set of kinds, sorted into places by `place_of`; a place has a row for each dp rank where those
// differ, else one for all. Medians are by kind and place.
class Transfers {
 public:
  // `place_of` [op]: -1 for ops that are no such transfer.
  Transfers(const WhatIf& what_if, const Kinds& kinds, std::vector<int> place_of, std::size_t place_count,
            bool is_by_dp_rank)
      : what_if_(what_if),
        place_of_(std::move(place_of)),
        place_count_(place_count),
        rows_(is_by_dp_rank ? what_if.dp_size() : 1) {
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      ops_[kind].resize(place_count);
      medians_[kind].assign(place_count * rows_, kUnknown);
    }
    for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
      const auto kind = index_in(kinds, what_if.graph().op(op).kind);
      if (kind && place_of_[op] >= 0) ops_[*kind][static_cast<std::size_t>(place_of_[op])].push_back(op);
    }
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) take_medians(kind);
  }

  std::size_t place_count() const { return place_count_; }
  std::size_t row_count() const { return rows_; }

  // What a transfer takes more there than at the others, as a factor; 1 where it is no slower, or nobody can tell.
  // `row` of a place, or the place in all its rows against the other places.
  double ratio(std::size_t kind, std::size_t place, std::size_t row) const {
    std::vector<double> own, others;
    for (std::size_t p = 0; p < place_count_; ++p) {
      for (std::size_t r = 0; r < rows_; ++r) {
        const bool is_own = p == place && (row == kAllRows || r == row);
        (is_own ? own : others).push_back(medians_[kind][p * rows_ + r]);
      }
    }
    return factor(finite_median(own), finite_median(others));
  }

  // Places, row by row, that have any transfer.
  std::size_t known_count() const {
    std::size_t count = 0;
    for (std::size_t i = 0; i < place_count_ * rows_; ++i) {
      count += std::any_of(medians_.begin(), medians_.end(), [&](const std::vector<double>& medians) {
        return i < medians.size() && std::isfinite(medians[i]);
      });
    }
    return count;
  }

  // Time that a place takes more than the others, over all its transfers of a lane.
  double excess_ns(std::size_t place, std::size_t row) const {
    double sum = 0;
    for (std::size_t kind = 0; kind < ops_.size(); ++kind) {
      const double own = medians_[kind][place * rows_ + row];
      const double over = own - typical(kind, place, row);
      if (std::isfinite(over) && over > 0) sum += over * static_cast<double>(ops_[kind][place].size());
    }
    return sum;
  }

  // False where all transfers there may be waits for who was not recorded, or none was recorded.
  bool is_known(std::size_t place, std::size_t row) const {
    return std::any_of(medians_.begin(), medians_.end(),
                       [&](const std::vector<double>& medians) { return std::isfinite(medians[place * rows_ + row]); });
  }

  // Divides the transfers of a place by what they take more; in all rows, each by its own factor, where none is given.
  void repair(JobEdit& edit, std::size_t place, std::size_t row) const {
    for (std::size_t kind = 0; kind < ops_.size(); ++kind) {
      const std::vector<double> factors = factors_of(kind, place, row);
      if (std::all_of(factors.begin(), factors.end(), [](double value) { return value == 1; })) continue;
      for (OpIndex op : ops_[kind][place]) {
        double* durations = edit.durations_ns(op);
        for (std::size_t lane = 0; lane < what_if_.timing().lane_count; ++lane) {
          durations[lane] /= factors[rows_ == 1 ? 0 : lane % what_if_.dp_size()];
        }
      }
    }
  }

 private:
  void take_medians(std::size_t kind) {
    const OpTiming& timing = what_if_.timing();
    std::vector<std::vector<double>> values(rows_);
    for (std::size_t place = 0; place < place_count_; ++place) {
      for (std::vector<double>& each : values) each.clear();
      for (OpIndex op : ops_[kind][place]) {
        const std::uint64_t* mask = timing.counted.of(op);
        for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
          if (mask != nullptr && mask[lane] == 0) continue;
          values[rows_ == 1 ? 0 : lane % what_if_.dp_size()].push_back(timing.durations(op)[lane]);
        }
      }
      for (std::size_t row = 0; row < rows_; ++row) {
        if (!values[row].empty()) medians_[kind][place * rows_ + row] = median(values[row]);
      }
    }
    sorted_[kind] = medians_[kind];
    std::erase_if(sorted_[kind], [](double value) { return !std::isfinite(value); });
    std::sort(sorted_[kind].begin(), sorted_[kind].end());
  }

  // The median of all others: of the sorted ones without one of its own value.
  double typical(std::size_t kind, std::size_t place, std::size_t row) const {
    const std::vector<double>& sorted = sorted_[kind];
    const double own = medians_[kind][place * rows_ + row];
    if (!std::isfinite(own) || sorted.size() < 2) return kUnknown;
    const auto at = static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), own) - sorted.begin());
    const auto without = [&](std::size_t index) { return sorted[index + (index >= at ? 1 : 0)]; };
    const std::size_t count = sorted.size() - 1;
    return (without((count - 1) / 2) + without(count / 2)) / 2;
  }

  static double factor(double own, double others) {
    return std::isfinite(own) && std::isfinite(others) && others > 0 && own > others ? own / others : 1;
  }

  std::vector<double> factors_of(std::size_t kind, std::size_t place, std::size_t row) const {
    std::vector<double> factors(rows_, 1);
    if (row != kAllRows) {
      factors[row] = ratio(kind, place, row);
      return factors;
    }
    std::vector<double> others;
    for (std::size_t p = 0; p < place_count_; ++p) {
      for (std::size_t r = 0; p != place && r < rows_; ++r) others.push_back(medians_[kind][p * rows_ + r]);
    }
    const double elsewhere = finite_median(others);
    const double of_unknown = ratio(kind, place, kAllRows);
    for (std::size_t r = 0; r < rows_; ++r) {
      const double own = medians_[kind][place * rows_ + r];
      factors[r] = std::isfinite(own) ? factor(own, elsewhere) : of_unknown;
    }
    return factors;
  }

  const WhatIf& what_if_;
  std::vector<int> place_of_;
  std::size_t place_count_;
  std::size_t rows_;
  std::array<std::vector<std::vector<OpIndex>>, 4> ops_;  // [kind][place]
  std::array<std::vector<double>, 4> medians_;            // [kind][place · rows + row]
  std::array<std::vector<double>, 4> sorted_;
};

using StagePair = std::pair<int, int>;

// The two stages of each message that has both its ends, the lower one first.
std::vector<int> links_of(const OpGraph& graph, std::vector<StagePair>& links) {
  std::map<StagePair, int> number;
  std::vector<int> link_of(graph.size(), -1);
  for (const Group& group : graph.groups()) {
    if (group.members.size() != 2 || group.spans_dp) continue;
    const auto [low, high] = std::minmax(graph.op(group.members[0]).stage, graph.op(group.members[1]).stage);
    if (low == high || !index_in(kMessages, graph.op(group.members[0]).kind)) continue;
    const auto [found, is_new] = number.try_emplace({low, high}, static_cast<int>(links.size()));
    if (is_new) links.emplace_back(low, high);
    for (OpIndex op : group.members) link_of[op] = found->second;
  }
  return link_of;
}

Transfers transfers_of_groups(const WhatIf& what_if) {
  std::vector<int> stage_of;
  for (const Op& op : what_if.graph().ops()) stage_of.push_back(index_in(kDpCollectives, op.kind) ? op.stage : -1);
  return Transfers(what_if, kDpCollectives, std::move(stage_of), what_if.pp_size(), false);
}

class CommCauses {
 public:
  CommCauses(const WhatIf& what_if, const CauseBasis& basis, ReplayCounter& counter)
      : what_if_(what_if), basis_(basis), counter_(counter) {}

  std::vector<CauseRemoval> find() && {
    add(links(whole("pp_communication", kMessages)));
    add(groups(whole("dp_communication", kDpCollectives)));
    return std::move(result_);
  }

 private:
  void add(std::optional<CauseRemoval> removal) {
    if (removal) result_.push_back(std::move(*removal));
  }

  std::optional<CauseRemoval> replayed(CauseRemoval removal, const Scenario& scenario) {
    if (!counter_.next()) return std::nullopt;
    basis_.set_steps(removal, basis_.before_ns(), what_if_.simulator().replay(scenario).last);
    return removal;
  }

  std::optional<CauseRemoval> whole(const char* cause, const Kinds& kinds) {
    Scenario scenario = basis_.keeps_launch_delays ? what_if_.recorded() : what_if_.nodelay();
    for (OpIndex op = 0; op < what_if_.graph().size(); ++op) {
      if (!index_in(kinds, what_if_.graph().op(op).kind)) continue;
      scenario.durations[op] = {nullptr, what_if_.ideal_durations()[op], nullptr};
      if (what_if_.timing().complete.of(op) == nullptr) continue;
      std::vector<double>& durations = scenario.owned_lanes.emplace_back(what_if_.timing().lane_count);
      take_ideal(what_if_, op, durations.data());
      scenario.durations[op] = {durations.data(), 0, nullptr};
    }
    CauseRemoval removal;
    removal.cause = cause;
    return replayed(std::move(removal), scenario);
  }

  // Of two places the median of all lies between them, so the whole may give nothing back.
  bool may_have_a_place(const CauseRemoval& whole, std::size_t place_count) const {
    return place_count > 1 && (place_count == 2 || basis_.is_worth_placing(whole));
  }

  std::optional<CauseRemoval> links(std::optional<CauseRemoval> whole) {
    if (!whole) return whole;
    std::vector<StagePair> stages;
    std::vector<int> link_of = links_of(what_if_.graph(), stages);
    if (stages.empty() || !may_have_a_place(*whole, stages.size() * what_if_.dp_size())) return whole;
    const Transfers transfers(what_if_, kMessages, std::move(link_of), stages.size(), true);
    std::size_t link = 0, dp_rank = 0;
    for (std::size_t place = 0; place < stages.size(); ++place) {
      for (std::size_t row = 0; row < what_if_.dp_size(); ++row) {
        if (transfers.excess_ns(place, row) > transfers.excess_ns(link, dp_rank)) link = place, dp_rank = row;
      }
    }
    if (!is_slow_in_all(transfers, link, dp_rank)) {
      auto one = one_link(transfers, stages[link], link, dp_rank);
      if (!one || basis_.stands_for(*one, *whole)) return one;
      auto several = several_links(transfers, stages);
      if (several && basis_.stands_for(*several, *whole)) return several;
    }
    if (stages.size() == 1) return whole;
    auto all = one_link(transfers, stages[link], link, kAllRows);
    return !all || basis_.stands_for(*all, *whole) ? all : whole;
  }

  // Where the same link is about as slow in the other dp ranks, too, it is no matter of this one, although its own may
  // be all that gives anything back: beside a slow worker of its pipeline the other pipelines have time.
  static bool is_slow_in_all(const Transfers& transfers, std::size_t link, std::size_t dp_rank) {
    std::vector<double> others;
    for (std::size_t row = 0; row < transfers.row_count(); ++row) {
      if (row != dp_rank && transfers.is_known(link, row)) others.push_back(transfers.excess_ns(link, row));
    }
    return median(others) >= transfers.excess_ns(link, dp_rank) / 2;
  }

  std::optional<CauseRemoval> one_link(const Transfers& transfers, StagePair stages, std::size_t link,
                                       std::size_t dp_rank) {
    JobEdit edit(what_if_, basis_.keeps_launch_delays);
    transfers.repair(edit, link, dp_rank);
    CauseRemoval removal;
    removal.cause = "pp_communication";
    if (dp_rank != kAllRows) removal.dp_rank = static_cast<int>(dp_rank);
    std::tie(removal.stage, removal.peer_stage) = stages;
    const double forward = std::max(transfers.ratio(0, link, dp_rank), transfers.ratio(1, link, dp_rank));
    const double backward = std::max(transfers.ratio(2, link, dp_rank), transfers.ratio(3, link, dp_rank));
    removal.detail = ratios_of(forward, backward);
    return replayed(std::move(removal), edit.scenario());
  }

  // All links that are about as much slower than the others as the slowest one; none where that is one, or most.
  std::optional<CauseRemoval> several_links(const Transfers& transfers, const std::vector<StagePair>& stages) {
    struct SlowLink {
      double excess_ns;
      std::size_t place, row;
    };
    std::vector<SlowLink> slow;
    for (std::size_t place = 0; place < stages.size(); ++place) {
      for (std::size_t row = 0; row < what_if_.dp_size(); ++row) {
        if (const double excess = transfers.excess_ns(place, row); excess > 0) slow.push_back({excess, place, row});
      }
    }
    std::stable_sort(slow.begin(), slow.end(), [](const auto& a, const auto& b) { return a.excess_ns > b.excess_ns; });
    std::erase_if(slow, [&, most = slow.front().excess_ns](const SlowLink& link) {
      return link.excess_ns < kOfTheLinksShare * most;
    });
    if (slow.size() < 2 || 2 * slow.size() > transfers.known_count()) return std::nullopt;
    JobEdit edit(what_if_, basis_.keeps_launch_delays);
    CauseRemoval removal;
    removal.cause = "pp_communication";
    std::vector<double> forward, backward;
    for (const auto& [excess_ns, place, row] : slow) {
      transfers.repair(edit, place, row);
      removal.links.push_back({static_cast<int>(row), stages[place].first, stages[place].second});
      forward.push_back(std::max(transfers.ratio(0, place, row), transfers.ratio(1, place, row)));
      backward.push_back(std::max(transfers.ratio(2, place, row), transfers.ratio(3, place, row)));
    }
    removal.dp_rank = removal.links.front().dp_rank;
    std::tie(removal.stage, removal.peer_stage) = stages[slow.front().place];
    removal.detail = ratios_of(median(forward), median(backward));
    return replayed(std::move(removal), edit.scenario());
  }

  static std::vector<std::pair<std::string, double>> ratios_of(double forward, double backward) {
    return {{"ratio", std::max(forward, backward)}, {"forward_ratio", forward}, {"backward_ratio", backward}};
  }

  std::optional<CauseRemoval> groups(std::optional<CauseRemoval> whole) {
    if (!whole || !may_have_a_place(*whole, what_if_.pp_size())) return whole;
    const Transfers transfers = transfers_of_groups(what_if_);
    std::size_t stage = 0;
    for (std::size_t place = 1; place < transfers.place_count(); ++place) {
      if (transfers.excess_ns(place, 0) > transfers.excess_ns(stage, 0)) stage = place;
    }
    JobEdit edit(what_if_, basis_.keeps_launch_delays);
    transfers.repair(edit, stage, 0);
    CauseRemoval removal;
    removal.cause = "dp_communication";
    removal.stage = static_cast<int>(stage);
    double ratio = 1;
    for (std::size_t kind = 0; kind < kDpCollectives.size(); ++kind) {
      ratio = std::max(ratio, transfers.ratio(kind, stage, 0));
    }
    removal.detail = {{"ratio", ratio}};
    auto one = replayed(std::move(removal), edit.scenario());
    return !one || basis_.stands_for(*one, *whole) ? one : whole;
  }

  const WhatIf& what_if_;
  const CauseBasis& basis_;
  ReplayCounter& counter_;
  std::vector<CauseRemoval> result_;
};

}  // namespace

std::vector<CauseRemoval> comm_causes(const WhatIf& what_if, const CauseBasis& basis, ReplayCounter& counter) {
  return CommCauses(what_if, basis, counter).find();
}

void take_ideal(const WhatIf& what_if, OpIndex op, double* durations_ns) {
  const OpTiming& timing = what_if.timing();
  const double ideal = what_if.ideal_durations()[op];
  std::fill_n(durations_ns, timing.lane_count, ideal);
  if (timing.complete.of(op) == nullptr) return;
  std::vector<double> counted;
  for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
    if (timing.counted.has(op, lane)) counted.push_back(timing.durations(op)[lane]);
  }
  const double excess = counted.empty() ? 0 : std::max(0.0, median(counted) - ideal);
  for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
    if (!timing.complete.has(op, lane)) durations_ns[lane] = timing.durations(op)[lane] - excess;
  }
}

bool repair_link(JobEdit& edit, const WhatIf& what_if, int dp_rank, int stage, int peer_stage) {
  std::vector<StagePair> stages;
  std::vector<int> link_of = links_of(what_if.graph(), stages);
  const StagePair wanted{std::min(stage, peer_stage), std::max(stage, peer_stage)};
  const auto link = std::find(stages.begin(), stages.end(), wanted);
  if (link == stages.end()) return false;
  const std::size_t row = dp_rank < 0 ? kAllRows : static_cast<std::size_t>(dp_rank);
  Transfers(what_if, kMessages, std::move(link_of), stages.size(), true)
      .repair(edit, static_cast<std::size_t>(link - stages.begin()), row);
  return true;
}

void repair_group(JobEdit& edit, const WhatIf& what_if, int stage) {
  transfers_of_groups(what_if).repair(edit, static_cast<std::size_t>(stage), 0);
}

}  // namespace smon_rt::analysis
