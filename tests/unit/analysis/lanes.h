#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "analysis/lane_ops.h"
#include "analysis/op_graph.h"
#include "format/kind.h"

namespace smon_rt::analysis::testing {

using Ops = std::set<OpIndex>;

/// A lane made by hand. Times in microseconds.
class Lane {
 public:
  Lane() = default;
  explicit Lane(std::vector<RecordedOp> recorded) : recorded_(std::move(recorded)) {}

  OpIndex add(Kind kind, int stage, int seq_id, std::int64_t start_us, std::int64_t end_us, int chunk = 0,
              int global_chunk = 0) {
    recorded_.push_back({{kind, stage, seq_id, chunk, global_chunk, -1}, start_us * 1000, end_us * 1000});
    return static_cast<OpIndex>(recorded_.size() - 1);
  }

  OpIndex find(Kind kind, int stage, int seq_id) const {
    for (std::size_t i = 0; i < recorded_.size(); ++i) {
      const Op& op = recorded_[i].op;
      if (op.kind == kind && op.stage == stage && op.seq_id == seq_id) return static_cast<OpIndex>(i);
    }
    throw std::out_of_range("the lane has no " + describe({kind, stage, seq_id, -1, -1, -1}));
  }

  RecordedOp& at(Kind kind, int stage, int seq_id) { return recorded_[find(kind, stage, seq_id)]; }

  template <typename Predicate>
  void erase_if(Predicate predicate) {
    std::erase_if(recorded_, [&](const RecordedOp& recorded) { return predicate(recorded.op); });
  }

  const std::vector<RecordedOp>& recorded() const { return recorded_; }

 private:
  std::vector<RecordedOp> recorded_;
};

inline Ops dependencies_of(const OpGraph& graph, OpIndex op) {
  return {graph.dependencies(op).begin(), graph.dependencies(op).end()};
}

inline Ops group_members(const OpGraph& graph, OpIndex op) {
  if (!graph.is_communication(op)) return {};
  const std::vector<OpIndex>& members = graph.groups()[graph.group_of(op)].members;
  return {members.begin(), members.end()};
}

inline bool group_spans_dp(const OpGraph& graph, OpIndex op) {
  return graph.is_communication(op) && graph.groups()[graph.group_of(op)].spans_dp;
}

/// A graph and the lane it was built from, for questions by kind, stage and number.
struct BuiltGraph {
  Lane lane;
  OpGraph graph;

  OpIndex op(Kind kind, int stage, int seq_id = 0) const { return lane.find(kind, stage, seq_id); }
  Ops before(Kind kind, int stage, int seq_id = 0) const { return dependencies_of(graph, op(kind, stage, seq_id)); }
  Ops group(Kind kind, int stage, int seq_id = 0) const { return group_members(graph, op(kind, stage, seq_id)); }
  bool spans_dp(Kind kind, int stage) const { return group_spans_dp(graph, op(kind, stage)); }
};

}  // namespace smon_rt::analysis::testing
