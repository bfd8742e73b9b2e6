#include "analysis/lost_ops.h"

#include <algorithm>
#include <vector>

namespace smon_rt::analysis {

/// Changes the table where ops are lost: their times, and takes_part().
class LostOps {
 public:
  LostOps(LaneTable& table, const OpGraph& graph)
      : table_(table), graph_(graph), lanes_(table.lane_count()), lost_(graph.size()) {
    LaneMask takes_part(graph.size(), lanes_);
    for (OpIndex op = 0; op < graph.size(); ++op) {
      for (std::size_t lane = 0; lane < lanes_; ++lane) {
        if (table.recorded().has(op, lane)) continue;
        if (has_partner(op, lane)) {
          lost_[op].push_back(lane);
        } else {
          takes_part.take_out(op, lane);
        }
      }
    }
    table_.takes_part_ = std::move(takes_part);
  }

  void put_in() {
    std::vector<std::size_t> started(graph_.groups().size(), 0);
    for (OpIndex op : graph_.order()) {
      for (std::size_t lane : lost_[op]) start(op, lane);
      if (!graph_.is_communication(op)) continue;
      const Group& group = graph_.groups()[graph_.group_of(op)];
      if (++started[graph_.group_of(op)] < group.members.size()) continue;
      for (OpIndex member : group.members) {
        for (std::size_t lane : lost_[member]) {
          table_.ends_ns_.data()[member * lanes_ + lane] = begin_of(group, lane);
        }
      }
    }
  }

 private:
  bool has_partner(OpIndex op, std::size_t lane) const {
    if (!graph_.is_communication(op)) return false;
    const Group& group = graph_.groups()[graph_.group_of(op)];
    const std::size_t first = lane / table_.dp_size() * table_.dp_size();
    for (OpIndex member : group.members) {
      for (std::size_t other = first; other < first + table_.dp_size(); ++other) {
        if (!group.joins(lane - first, other - first)) continue;
        if (table_.recorded().has(member, other)) return true;
      }
    }
    return false;
  }

  void start(OpIndex op, std::size_t lane) {
    double ready = table_.worker_start_ns(lane, graph_.op(op).stage);
    for (OpIndex before : graph_.dependencies(op)) ready = std::max(ready, table_.ends_ns(before)[lane]);
    table_.starts_ns_.data()[op * lanes_ + lane] = ready;
    table_.ends_ns_.data()[op * lanes_ + lane] = ready;
  }

  double begin_of(const Group& group, std::size_t lane) const {
    const std::size_t first = lane / table_.dp_size() * table_.dp_size();
    double begin = 0;
    for (OpIndex member : group.members) {
      for (std::size_t other = first; other < first + table_.dp_size(); ++other) {
        if (group.joins(lane - first, other - first)) begin = std::max(begin, table_.starts_ns(member)[other]);
      }
    }
    return begin;
  }

  LaneTable& table_;
  const OpGraph& graph_;
  std::size_t lanes_;
  std::vector<std::vector<std::size_t>> lost_;
};

void put_in_lost_ops(LaneTable& table, const OpGraph& graph) {
  if (!table.recorded().is_everything()) LostOps(table, graph).put_in();
}

}  // namespace smon_rt::analysis
