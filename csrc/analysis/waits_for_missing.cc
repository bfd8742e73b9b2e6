#include "analysis/waits_for_missing.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "analysis/job_edit.h"
#include "analysis/launch_order.h"
#include "analysis/missing_workers.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

// A missing worker whose messages came so little later than usual, of the step, was as fast as the others.
constexpr double kInTimeRatio = 0.01;
// A collective may carry twice the bytes of the shortest one of its stage: gradients of twice the precision.
constexpr double kUsualOfShortest = 2;

bool is_send(Kind kind) {
  return kind == Kind::kForwardSend || kind == Kind::kBackwardSend;
}

class WaitMarker {
 public:
  WaitMarker(const LaneTable& table, const OpGraph& graph, OpTiming& timing)
      : table_(table),
        graph_(graph),
        timing_(timing),
        missing_(table, graph),
        is_in_time_(table.worker_ranks().size(), false) {}

  void mark() {
    if (!missing_.are_there()) return;
    timing_.complete = LaneMask(graph_.size(), timing_.lane_count);
    mark_groups(Role::kP2p);
    see_who_came_in_time();
    mark_groups(Role::kCollective);
    mark_groups(Role::kCompute);
    for (OpIndex op = 0; op < graph_.size(); ++op) {
      if (!is_alone(op)) continue;
      for (std::size_t lane = 0; lane < timing_.lane_count; ++lane) take_out(op, lane);
    }
  }

 private:
  void take_out(OpIndex op, std::size_t lane) {
    if (!timing_.takes_part.has(op, lane)) return;
    timing_.complete.take_out(op, lane);
    timing_.counted.take_out(op, lane);
  }

  void mark_groups(Role role) {
    for (const Group& group : graph_.groups()) {
      if (role_of(graph_.op(group.members.front()).kind) != role) continue;
      for (std::size_t lane = 0; lane < timing_.lane_count; ++lane) {
        if (!waits(group, lane % table_.dp_size())) continue;
        for (OpIndex member : group.members) take_out(member, lane);
      }
    }
  }

  bool waits(const Group& group, std::size_t dp_rank) const {
    for (std::size_t other = 0; other < table_.dp_size(); ++other) {
      if (!group.joins(dp_rank, other)) continue;
      for (OpIndex member : group.members) {
        const auto stage = static_cast<std::size_t>(graph_.op(member).stage);
        if (missing_.is_missing(other, stage) && !is_in_time_[other * missing_.pp_size() + stage]) return true;
      }
    }
    return false;
  }

  // By how much its messages came later than others of their kind.
  void see_who_came_in_time() {
    const std::array<double, kKindCount> usual = ideal_durations(timing_, graph_);
    std::vector<double> late_ns(is_in_time_.size(), 0);
    std::vector<bool> is_seen(is_in_time_.size(), false);
    for (const Group& group : graph_.groups()) {
      if (group.spans_dp || group.members.size() != 2) continue;
      for (std::size_t i : {0, 1}) {
        const OpIndex sent = group.members[i], received = group.members[1 - i];
        if (!is_send(graph_.op(sent).kind)) continue;
        const double typical = usual[static_cast<std::size_t>(graph_.op(received).kind)];
        if (!(typical > 0)) continue;
        for (std::size_t lane = 0; lane < timing_.lane_count; ++lane) {
          if (!missing_.is_missing(sent, lane) || !table_.recorded().has(received, lane)) continue;
          const std::size_t worker =
              lane % table_.dp_size() * missing_.pp_size() + static_cast<std::size_t>(graph_.op(sent).stage);
          is_seen[worker] = true;
          late_ns[worker] += std::max(0.0, timing_.durations(received)[lane] - typical);
        }
      }
    }
    double all_steps_ns = 0;
    for (double step : table_.step_times_ns()) all_steps_ns += step;
    for (std::size_t worker = 0; worker < is_in_time_.size(); ++worker) {
      is_in_time_[worker] = is_seen[worker] && late_ns[worker] < kInTimeRatio * all_steps_ns;
    }
  }

  // True for communication whose partners are all missing, so that nothing tells when it began.
  bool is_alone(OpIndex op) const {
    const Op& it = graph_.op(op);
    if (graph_.is_communication(op)) return false;
    if (role_of(it.kind) == Role::kP2p) return missing_.pp_size() > 1;
    if (!is_dp_collective(it.kind)) return role_of(it.kind) == Role::kCollective;
    for (std::size_t dp_rank = 0; dp_rank < table_.dp_size(); ++dp_rank) {
      if (missing_.is_missing(dp_rank, static_cast<std::size_t>(it.stage))) return true;
    }
    return false;
  }

  const LaneTable& table_;
  const OpGraph& graph_;
  OpTiming& timing_;
  MissingWorkers missing_;
  std::vector<bool> is_in_time_;  // [dp_rank · pp_size + stage], of missing workers
};

// What transfers take without waiting, as far as those of others tell.
class UsualTransfers {
 public:
  explicit UsualTransfers(const WhatIf& what_if)
      : what_if_(what_if),
        by_kind_(ideal_durations(what_if.timing(), what_if.graph())),
        shortest_of_stage_(what_if.pp_size(), std::numeric_limits<double>::infinity()) {
    for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
      const Op& it = what_if.graph().op(op);
      double& shortest = shortest_of_stage_[static_cast<std::size_t>(it.stage)];
      if (is_dp_collective(it.kind)) shortest = std::min(shortest, what_if.ideal_durations()[op]);
    }
  }

  // Takes out of the op's durations, one per lane, what they wait more.
  void take_out_waits(OpIndex op, double* durations) const {
    const OpTiming& timing = what_if_.timing();
    const Kind kind = what_if_.graph().op(op).kind;
    const double of_kind = by_kind_[static_cast<std::size_t>(kind)];
    const bool is_known = of_kind > 0 && what_if_.graph().is_communication(op);
    const std::vector<double> excess = is_known || is_dp_collective(kind) ? std::vector<double>() : excess_of_ranks(op);
    const double usual = is_known ? of_kind : kUsualOfShortest * shortest_of_stage(op);
    for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
      if (timing.complete.has(op, lane)) continue;
      durations[lane] =
          excess.empty() ? std::min(durations[lane], usual) : durations[lane] - excess[lane % excess.size()];
    }
  }

 private:
  double shortest_of_stage(OpIndex op) const {
    return shortest_of_stage_[static_cast<std::size_t>(what_if_.graph().op(op).stage)];
  }

  // What each dp rank waits longer than the others: of a message from a stage that was not recorded nothing else tells.
  std::vector<double> excess_of_ranks(OpIndex op) const {
    const OpTiming& timing = what_if_.timing();
    std::vector<double> medians;
    for (std::size_t dp_rank = 0; dp_rank < what_if_.dp_size(); ++dp_rank) {
      std::vector<double> values;
      for (std::size_t lane = dp_rank; lane < timing.lane_count; lane += what_if_.dp_size()) {
        if (timing.takes_part.has(op, lane)) values.push_back(timing.durations(op)[lane]);
      }
      medians.push_back(values.empty() ? std::numeric_limits<double>::quiet_NaN() : median(values));
    }
    std::vector<double> excess;
    for (std::size_t dp_rank = 0; dp_rank < medians.size(); ++dp_rank) {
      std::vector<double> others = medians;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(dp_rank));
      const double more = medians[dp_rank] - finite_median(others);
      excess.push_back(more > 0 ? more : 0);
    }
    return excess;
  }

  const WhatIf& what_if_;
  std::array<double, kKindCount> by_kind_;
  std::vector<double> shortest_of_stage_;
};

}  // namespace

void mark_waits_for_missing(const LaneTable& table, const OpGraph& graph, OpTiming& timing) {
  WaitMarker(table, graph, timing).mark();
}

std::optional<std::vector<double>> without_waits_for_missing(const WhatIf& what_if) {
  const OpTiming& timing = what_if.timing();
  if (timing.complete.is_everything()) return std::nullopt;
  const UsualTransfers usual(what_if);
  JobEdit edit(what_if);
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    if (timing.complete.of(op) == nullptr) continue;
    usual.take_out_waits(op, edit.durations_ns(op));
  }
  return what_if.simulator().replay(edit.scenario()).last;
}

}  // namespace smon_rt::analysis
