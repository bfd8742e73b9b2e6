#include "analysis/lost_ops.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "analysis/missing_workers.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {

/// Changes the table where ops are lost: their times, and takes_part().
class LostOps {
 public:
  LostOps(LaneTable& table, const OpGraph& graph)
      : table_(table), graph_(graph), lanes_(table.lane_count()), missing_(table, graph), lost_(graph.size()) {
    LaneMask takes_part(graph.size(), lanes_);
    for (OpIndex op = 0; op < graph.size(); ++op) {
      for (std::size_t lane = 0; lane < lanes_; ++lane) {
        if (table.recorded().has(op, lane)) continue;
        if (has_partner(op, lane) || missing_.has(op, lane)) {
          lost_[op].push_back(lane);
        } else {
          takes_part.take_out(op, lane);
        }
      }
    }
    table_.takes_part_ = std::move(takes_part);
  }

  void put_in() {
    if (missing_.are_there()) find_latest_ends();
    std::vector<std::size_t> started(graph_.groups().size(), 0);
    for (OpIndex op : graph_.order()) {
      const double delay = missing_.are_there() && !lost_[op].empty() ? usual_delay(op) : 0;
      for (std::size_t lane : lost_[op]) start(op, lane, delay);
      if (!graph_.is_communication(op)) continue;
      const Group& group = graph_.groups()[graph_.group_of(op)];
      if (++started[graph_.group_of(op)] == group.members.size()) complete(group);
    }
  }

 private:
  bool has_partner(OpIndex op, std::size_t lane) const {
    if (!graph_.is_communication(op)) return false;
    bool found = false;
    for_each_partner(graph_.groups()[graph_.group_of(op)], lane,
                     [&](OpIndex member, std::size_t other) { found = found || table_.recorded().has(member, other); });
    return found;
  }

  // All members that wait for the lane's, its own included.
  template <typename Visit>
  void for_each_partner(const Group& group, std::size_t lane, Visit visit) const {
    const std::size_t first = lane / table_.dp_size() * table_.dp_size();
    for (std::size_t other = first; other < first + table_.dp_size(); ++other) {
      if (!group.joins(lane - first, other - first)) continue;
      for (OpIndex member : group.members) visit(member, other);
    }
  }

  double ready_ns(OpIndex op, std::size_t lane) const {
    double ready = worker_start_ns(op, lane);
    for (OpIndex before : graph_.dependencies(op)) ready = std::max(ready, table_.ends_ns(before)[lane]);
    return ready;
  }

  // A worker that was not recorded begins when the others of its stage do.
  double worker_start_ns(OpIndex op, std::size_t lane) const {
    const std::int32_t stage = graph_.op(op).stage;
    if (!missing_.is_missing(op, lane) || table_.worker_starts_ns().empty()) return table_.worker_start_ns(lane, stage);
    std::vector<double> others;
    const std::size_t first = lane / table_.dp_size() * table_.dp_size();
    for (std::size_t dp_rank = 0; dp_rank < table_.dp_size(); ++dp_rank) {
      if (missing_.is_missing(dp_rank, static_cast<std::size_t>(stage))) continue;
      others.push_back(table_.worker_start_ns(first + dp_rank, stage));
    }
    return median(others);
  }

  // Launch delay of those that were recorded.
  double usual_delay(OpIndex op) const {
    std::vector<double> delays;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      if (table_.recorded().has(op, lane)) delays.push_back(table_.starts_ns(op)[lane] - ready_ns(op, lane));
    }
    return std::max(0.0, lower_median(delays));
  }

  void start(OpIndex op, std::size_t lane, double usual_delay) {
    const double ready = ready_ns(op, lane);
    double start = ready, end = ready;
    if (missing_.is_missing(op, lane)) {
      start = std::max(ready, std::min(ready + usual_delay, latest_start_.data()[op * lanes_ + lane]));
      end = graph_.is_communication(op) ? start : bounded_end(op, lane, start, missing_.duration_ns(op, lane));
    }
    table_.starts_ns_.data()[op * lanes_ + lane] = start;
    table_.ends_ns_.data()[op * lanes_ + lane] = end;
  }

  double bounded_end(OpIndex op, std::size_t lane, double start, double duration) const {
    return std::max(start, std::min(start + duration, latest_end_.data()[op * lanes_ + lane]));
  }

  void complete(const Group& group) {
    for (OpIndex member : group.members) {
      if (lost_[member].empty()) continue;
      double transfer = missing_.are_there() ? usual_transfer(group, member) : 0;
      // Of a collective that lacks somebody everywhere the wait for who was recorded is no part of it, at least.
      if (transfer == 0 && missing_.are_there() && group.spans_dp) transfer = usual_transfer(group, member, false);
      for (std::size_t lane : lost_[member]) {
        const double begin = begin_of(group, lane);
        double& end = table_.ends_ns_.data()[member * lanes_ + lane];
        end = missing_.is_missing(member, lane) ? bounded_end(member, lane, begin, transfer) : begin;
      }
    }
  }

  double begin_of(const Group& group, std::size_t lane) const {
    double begin = 0;
    for_each_partner(group, lane, [&](OpIndex member, std::size_t other) {
      begin = std::max(begin, table_.starts_ns(member)[other]);
    });
    return begin;
  }

  // Of those whose partners were all recorded; 0 where nobody's were.
  double usual_transfer(const Group& group, OpIndex member, bool only_whole = true) const {
    std::vector<double> transfers;
    for (std::size_t lane = 0; lane < lanes_; ++lane) {
      bool is_whole = table_.recorded().has(member, lane);
      if (!is_whole) continue;
      for_each_partner(group, lane, [&](OpIndex other, std::size_t other_lane) {
        is_whole = is_whole && !(only_whole && missing_.is_missing(other, other_lane));
      });
      if (is_whole) transfers.push_back(table_.ends_ns(member)[lane] - begin_of(group, lane));
    }
    return std::max(0.0, median(transfers));
  }

  // What a missing worker did was over when those who waited for it went on: from the last op to the first.
  void find_latest_ends() {
    for (LaneBuffer* latest : {&latest_start_, &latest_end_}) {
      *latest = LaneBuffer(graph_.size() * lanes_);
      std::fill_n(latest->data(), latest->size(), std::numeric_limits<double>::infinity());
    }
    for (auto op = graph_.order().rbegin(); op != graph_.order().rend(); ++op) {
      if (lost_[*op].empty()) continue;
      const Group* group = graph_.is_communication(*op) ? &graph_.groups()[graph_.group_of(*op)] : nullptr;
      const double transfer = group == nullptr ? 0 : usual_transfer(*group, *op);
      for (std::size_t lane : lost_[*op]) {
        if (!missing_.is_missing(*op, lane)) continue;
        double& latest_start = latest_start_.data()[*op * lanes_ + lane];
        latest_start = latest_end_.data()[*op * lanes_ + lane];
        if (group != nullptr) {
          for_each_partner(*group, lane, [&](OpIndex member, std::size_t other) {
            if (!table_.recorded().has(member, other)) return;
            latest_start = std::min(latest_start, table_.ends_ns(member)[other] - transfer);
          });
        }
        for (OpIndex before : graph_.dependencies(*op)) {
          double& earlier = latest_end_.data()[before * lanes_ + lane];
          earlier = std::min(earlier, latest_start);
        }
      }
    }
  }

  LaneTable& table_;
  const OpGraph& graph_;
  std::size_t lanes_;
  MissingWorkers missing_;
  std::vector<std::vector<std::size_t>> lost_;
  LaneBuffer latest_start_, latest_end_;  // [op · lanes + lane], of missing workers
};

void put_in_lost_ops(LaneTable& table, const OpGraph& graph) {
  if (!table.recorded().is_everything()) LostOps(table, graph).put_in();
}

}  // namespace smon_rt::analysis
