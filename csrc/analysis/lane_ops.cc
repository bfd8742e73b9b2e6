#include "analysis/lane_ops.h"

#include <algorithm>
#include <string>
#include <tuple>

namespace smon_rt::analysis {
namespace {

void sort_by_launch(std::vector<OpIndex>& ops, std::span<const RecordedOp> recorded) {
  std::sort(ops.begin(), ops.end(), [&](OpIndex a, OpIndex b) {
    const RecordedOp& left = recorded[a];
    const RecordedOp& right = recorded[b];
    return std::tuple(left.start_ns, left.op.seq_id, kind_name(left.op.kind), a) <
           std::tuple(right.start_ns, right.op.seq_id, kind_name(right.op.kind), b);
  });
}

Result<void> check_stage(const LaneOps& lane, std::int32_t stage) {
  for (Kind kind : {Kind::kForwardCompute, Kind::kBackwardCompute, Kind::kOptimizer}) {
    if (lane.stage(stage).of(kind).empty()) {
      return Error{"stage " + std::to_string(stage) + " has no " + std::string(kind_name(kind)) +
                   " in dp rank 0's first step: every stage needs forwards, backwards and an optimizer"};
    }
  }
  for (Kind kind : {Kind::kForwardCompute, Kind::kBackwardCompute}) {
    const std::vector<OpIndex> ops = lane.by_seq_id(kind, stage);
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (lane.op(ops[i]).seq_id != static_cast<std::int32_t>(i)) {
        return Error{std::string(kind_name(kind)) + " of stage " + std::to_string(stage) + " has the seq_id " +
                     std::to_string(lane.op(ops[i]).seq_id) + " where " + std::to_string(i) +
                     " is due: an op is missing or recorded twice"};
      }
    }
  }
  return {};
}

}  // namespace

Result<LaneOps> LaneOps::sort(std::span<const RecordedOp> recorded, std::int32_t stage_count) {
  LaneOps lane;
  lane.recorded_ = recorded;
  lane.stages_.resize(static_cast<std::size_t>(stage_count));
  for (OpIndex i = 0; i < recorded.size(); ++i) {
    const Op& op = recorded[i].op;
    StageOps& stage = lane.stages_[static_cast<std::size_t>(op.stage)];
    stage.by_kind[static_cast<std::size_t>(op.kind)].push_back(i);
    if (op.kind == Kind::kForwardCompute || op.kind == Kind::kBackwardCompute) stage.compute.push_back(i);
  }
  for (StageOps& stage : lane.stages_) {
    for (std::vector<OpIndex>& ops : stage.by_kind) sort_by_launch(ops, recorded);
    sort_by_launch(stage.compute, recorded);
  }
  for (std::int32_t stage = 0; stage < stage_count; ++stage) {
    if (auto checked = check_stage(lane, stage); !checked) return checked.error();
    lane.forward_by_seq_id_.push_back(lane.by_seq_id(Kind::kForwardCompute, stage));
    lane.backward_by_seq_id_.push_back(lane.by_seq_id(Kind::kBackwardCompute, stage));
  }
  return lane;
}

OpIndex LaneOps::compute(Kind kind, std::int32_t stage, std::size_t seq_id) const {
  const auto& by_stage = kind == Kind::kForwardCompute ? forward_by_seq_id_ : backward_by_seq_id_;
  return by_stage[static_cast<std::size_t>(stage)][seq_id];
}

std::vector<OpIndex> LaneOps::by_seq_id(Kind kind, std::int32_t stage) const {
  std::vector<OpIndex> ops = this->stage(stage).of(kind);
  std::stable_sort(ops.begin(), ops.end(), [&](OpIndex a, OpIndex b) { return op(a).seq_id < op(b).seq_id; });
  return ops;
}

}  // namespace smon_rt::analysis
