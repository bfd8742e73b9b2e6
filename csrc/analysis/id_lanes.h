#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "analysis/lane_table.h"
#include "analysis/member_excess.h"
#include "analysis/op_columns.h"
#include "analysis/op_graph.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// A step that the analysis does not use, and why: "step 4: …" without the number.
struct LeftOutStep {
  std::int64_t step = 0;
  std::string reason;
};

/// An op of a lane in the launch order of its worker.
struct LaunchedOp {
  OpIndex op = 0;
  bool is_in_stream = false;          // of the compute stream
  bool was_inside = false;            // of the compute before it
  bool is_waited_by_compute = false;  // communication whose end the thread that computes waited for, as it recorded
  std::int32_t communicator = -1;     // see OpColumns
};

/// The lanes of a job whose ops carry ids, made one by what ops are rather than by their number: an op of the result is
/// every op of the same kind, stage, chunk and microbatch, in as many lanes as recorded it. Where ids repeat (ops
/// without a microbatch) the number within the communicator counts, and the order of launch where there is none: a lost
/// op of a lane shifts the latter, not the former. Host ops (data loading, gc, eval, …) are told apart by the compute
/// they follow: a collection happens anywhere, in each step somewhere else.
///
/// Lanes may differ: uneven microbatch counts between steps and dp ranks, lost ops, workers without any. LaneTable's
/// recorded() says who has what. What must not differ is the order of a worker's computes and the partners of a
/// communication: the step that contradicts most others is left out, and said.
struct IdLanes {
  LaneTable table;
  std::vector<Group> groups;
  /// Pairs of ops of which the second follows the first in the compute stream of some lane.
  std::vector<std::pair<OpIndex, OpIndex>> stream_edges;
  std::vector<LeftOutStep> left_out_steps;
  /// Computes and communication that some lane lacks and another has, over all lanes of the steps that are used.
  std::int64_t absent_op_count = 0;
  /// By op, then lane.
  std::vector<MemberExcess> member_excess;

  /// worker = lane · pp_size + stage.
  std::span<const LaunchedOp> launches(std::size_t worker) const {
    return {launches_.data() + begin_[worker], launches_.data() + begin_[worker + 1]};
  }
  std::size_t worker_count() const { return begin_.size() - 1; }

  std::vector<LaunchedOp> launches_;
  std::vector<std::size_t> begin_;
};

/// Sorts validated rows into lanes. Errors: more workers than rows, a rank in two workers, lanes that have next to
/// nothing in common, no step that agrees with any other.
Result<IdLanes> build_id_lanes(const OpColumns& columns, const JobLayout& layout);

}  // namespace smon_rt::analysis
