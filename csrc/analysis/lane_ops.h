#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "analysis/op_graph.h"
#include "base/result.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// An op of the lane from which a graph is built, with its recorded times.
struct RecordedOp {
  Op op;
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// The ops of one stage of a lane, as indices into the lane.
struct StageOps {
  std::array<std::vector<OpIndex>, kKindCount> by_kind;  // in order of launch: start, then seq_id
  std::vector<OpIndex> compute;                          // forward and backward together, in order of launch

  const std::vector<OpIndex>& of(Kind kind) const { return by_kind[static_cast<std::size_t>(kind)]; }
};

/// One lane sorted by stage and kind. Borrows the recorded ops.
class LaneOps {
 public:
  /// Errors: a stage without forward, backward or optimizer; computes whose seq_id are not 0, 1, 2, …
  static Result<LaneOps> sort(std::span<const RecordedOp> recorded, std::int32_t stage_count);

  std::size_t size() const { return recorded_.size(); }
  std::int32_t stage_count() const { return static_cast<std::int32_t>(stages_.size()); }
  const RecordedOp& recorded(OpIndex index) const { return recorded_[index]; }
  const Op& op(OpIndex index) const { return recorded_[index].op; }
  const StageOps& stage(std::int32_t stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  /// The forward or backward with this seq_id, which is its index among the computes of its kind and stage.
  OpIndex compute(Kind kind, std::int32_t stage, std::size_t seq_id) const;
  /// The ops of a kind by seq_id instead of by start.
  std::vector<OpIndex> by_seq_id(Kind kind, std::int32_t stage) const;

 private:
  std::span<const RecordedOp> recorded_;
  std::vector<StageOps> stages_;
  std::vector<std::vector<OpIndex>> forward_by_seq_id_;
  std::vector<std::vector<OpIndex>> backward_by_seq_id_;
};

}  // namespace smon_rt::analysis
