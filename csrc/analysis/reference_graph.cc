#include "analysis/reference_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "analysis/p2p_matching.h"

namespace smon_rt::analysis {
namespace {

constexpr Kind kP2pKinds[] = {Kind::kForwardSend, Kind::kForwardRecv, Kind::kBackwardSend, Kind::kBackwardRecv};
constexpr Kind kDpKinds[] = {Kind::kParamsAllGather, Kind::kGradsReduceScatter, Kind::kSeparateGradsAllReduce};
constexpr Kind kOtherKinds[] = {
    Kind::kForwardCompute,          Kind::kBackwardCompute,       Kind::kGc,       Kind::kLayernormGradsAllReduce,
    Kind::kEmbeddingGradsAllReduce, Kind::kOptimizerClipMainGrad, Kind::kOptimizer};

bool contains(std::span<const Kind> kinds, Kind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

class ReferenceRules {
 public:
  explicit ReferenceRules(const LaneOps& lane) : lane_(lane) {
    for (OpIndex i = 0; i < lane.size(); ++i) {
      graph_.add_op(lane.op(i));
      overlaps_dp_ |= lane.op(i).kind == Kind::kSeparateGradsAllReduce;
    }
  }

  Result<OpGraph> build() && {
    auto p2p = match_p2p(lane_);
    if (!p2p) return p2p.error();
    add_p2p(*p2p);
    for (std::int32_t stage = 0; stage < lane_.stage_count(); ++stage) {
      add_streams(stage);
      add_first_backward_p2p(stage);
      if (auto done = add_dp_edges(stage); !done) return done.error();
      add_after_compute(stage);
    }
    add_collective_groups();
    return std::move(graph_).build();
  }

 private:
  void add_p2p(const P2pMatches& p2p) {
    for (const P2pMatch& match : p2p.matched) {
      const Kind kind = lane_.op(match.op).kind;
      if (kind == Kind::kForwardSend || kind == Kind::kBackwardSend) {
        graph_.add_dependency(match.op, match.compute);
        continue;
      }
      graph_.add_dependency(match.compute, match.op);
      const Op& compute = lane_.op(match.compute);
      // A recv is posted when the compute before it (of its own direction) is done, whatever ran in between.
      if (compute.seq_id > 0) {
        graph_.add_dependency(match.op, lane_.compute(compute.kind, compute.stage, compute.seq_id - 1));
      }
    }
    for (const auto& [send, recv] : p2p.pairs) graph_.add_group({send, recv}, false);
    for (OpIndex op : p2p.alone) graph_.add_group({op}, false);
  }

  void add_streams(std::int32_t stage) {
    const StageOps& ops = lane_.stage(stage);
    graph_.add_chain(ops.compute);
    for (Kind kind : kP2pKinds) graph_.add_chain(ops.of(kind));
  }

  // The first backward send and recv wait for the second-last forward before the first backward.
  void add_first_backward_p2p(std::int32_t stage) {
    const std::vector<OpIndex>& compute = lane_.stage(stage).compute;
    const auto first_backward = std::find_if(compute.begin(), compute.end(),
                                             [&](OpIndex i) { return lane_.op(i).kind == Kind::kBackwardCompute; });
    if (first_backward - compute.begin() < 2) return;
    for (Kind kind : {Kind::kBackwardRecv, Kind::kBackwardSend}) {
      for (OpIndex op : lane_.stage(stage).of(kind)) {
        if (lane_.op(op).seq_id == 0) graph_.add_dependency(op, *(first_backward - 2));
      }
    }
  }

  Result<void> add_dp_edges(std::int32_t stage) {
    const StageOps& ops = lane_.stage(stage);
    graph_.add_chain(dp_stream(ops));
    std::set<std::int32_t> done;
    std::vector<OpIndex> gathers = lane_.by_seq_id(Kind::kParamsAllGather, stage);
    // The last gather of a chunk is the one its forwards wait for.
    std::reverse(gathers.begin(), gathers.end());
    for (OpIndex gather : gathers) {
      const std::int32_t chunk = lane_.op(gather).chunk;
      if (!done.insert(chunk).second) continue;
      const std::optional<OpIndex> forward = first_forward(ops, chunk);
      if (!forward) return no_compute_of_chunk(gather, Kind::kForwardCompute);
      graph_.add_dependency(*forward, gather);
    }
    if (!overlaps_dp_) return {};
    done.clear();
    for (OpIndex scatter : lane_.by_seq_id(Kind::kGradsReduceScatter, stage)) {
      const std::int32_t chunk = lane_.op(scatter).chunk;
      if (!done.insert(chunk).second) continue;
      const std::optional<OpIndex> backward = last_backward(ops, chunk);
      if (!backward) return no_compute_of_chunk(scatter, Kind::kBackwardCompute);
      graph_.add_dependency(scatter, *backward);
    }
    return {};
  }

  // gc -> layernorm -> embedding -> [reduce-scatters | separate] -> clip -> optimizer. A kind that was not recorded is
  // passed over: what follows waits for what came before.
  void add_after_compute(std::int32_t stage) {
    std::vector<OpIndex> before = {last_to_end(lane_.stage(stage).compute)};
    auto append = [&](Kind kind) {
      for (OpIndex op : lane_.by_seq_id(kind, stage)) {
        for (OpIndex earlier : before) graph_.add_dependency(op, earlier);
        before = {op};
      }
    };
    append(Kind::kGc);
    const std::vector<OpIndex> scatters = lane_.by_seq_id(Kind::kGradsReduceScatter, stage);
    if (overlaps_dp_ && !scatters.empty()) before.push_back(scatters.back());
    append(Kind::kLayernormGradsAllReduce);
    append(Kind::kEmbeddingGradsAllReduce);
    append(overlaps_dp_ ? Kind::kSeparateGradsAllReduce : Kind::kGradsReduceScatter);
    append(Kind::kOptimizerClipMainGrad);
    append(Kind::kOptimizer);
  }

  void add_collective_groups() {
    for (std::int32_t stage = 0; stage < lane_.stage_count(); ++stage) {
      for (Kind kind : kDpKinds) {
        for (OpIndex op : lane_.stage(stage).of(kind)) graph_.add_group({op}, true);
      }
    }
    add_groups_across_stages(Kind::kEmbeddingGradsAllReduce, false);
    add_groups_across_stages(Kind::kOptimizerClipMainGrad, true);
  }

  // One group per seq_id, of all stages that recorded it.
  void add_groups_across_stages(Kind kind, bool spans_dp) {
    std::map<std::int32_t, std::vector<OpIndex>> groups;
    for (std::int32_t stage = 0; stage < lane_.stage_count(); ++stage) {
      for (OpIndex op : lane_.stage(stage).of(kind)) groups[lane_.op(op).seq_id].push_back(op);
    }
    for (auto& [seq_id, members] : groups) graph_.add_group(std::move(members), spans_dp);
  }

  std::vector<OpIndex> dp_stream(const StageOps& ops) const {
    std::vector<OpIndex> stream = ops.of(Kind::kGradsReduceScatter);
    const auto& gathers = ops.of(Kind::kParamsAllGather);
    stream.insert(stream.end(), gathers.begin(), gathers.end());
    std::stable_sort(stream.begin(), stream.end(), [&](OpIndex a, OpIndex b) {
      return std::pair(lane_.recorded(a).start_ns, lane_.op(a).seq_id) <
             std::pair(lane_.recorded(b).start_ns, lane_.op(b).seq_id);
    });
    return stream;
  }

  std::optional<OpIndex> first_forward(const StageOps& ops, std::int32_t chunk) const {
    for (OpIndex i : ops.of(Kind::kForwardCompute)) {
      if (lane_.op(i).chunk == chunk) return i;
    }
    return std::nullopt;
  }

  std::optional<OpIndex> last_backward(const StageOps& ops, std::int32_t chunk) const {
    std::vector<OpIndex> of_chunk;
    for (OpIndex i : ops.of(Kind::kBackwardCompute)) {
      if (lane_.op(i).chunk == chunk) of_chunk.push_back(i);
    }
    if (of_chunk.empty()) return std::nullopt;
    return last_to_end(of_chunk);
  }

  OpIndex last_to_end(std::span<const OpIndex> ops) const {
    return *std::max_element(ops.begin(), ops.end(),
                             [&](OpIndex a, OpIndex b) { return lane_.recorded(a).end_ns < lane_.recorded(b).end_ns; });
  }

  Error no_compute_of_chunk(OpIndex op, Kind compute) const {
    return Error{describe(lane_.op(op)) + " belongs to chunk " + std::to_string(lane_.op(op).chunk) +
                 ", of which the stage has no " + std::string(kind_name(compute))};
  }

  const LaneOps& lane_;
  bool overlaps_dp_ = false;
  OpGraphBuilder graph_;
};

// A collective that some of its stages lack would be replayed as if they had never waited for one another.
Result<void> check_recorded_by_all(const LaneOps& lane, Kind kind, std::span<const std::int32_t> stages) {
  for (std::int32_t stage : stages) {
    if (lane.stage(stage).of(kind).size() == lane.stage(stages.front()).of(kind).size()) continue;
    return Error{"stage " + std::to_string(stages.front()) + " has " +
                 std::to_string(lane.stage(stages.front()).of(kind).size()) + " " + std::string(kind_name(kind)) +
                 ", but stage " + std::to_string(stage) + " has " + std::to_string(lane.stage(stage).of(kind).size()) +
                 ": they are one collective, record it on both or on neither"};
  }
  return {};
}

Result<void> check_collectives(const LaneOps& lane) {
  const std::int32_t ends[] = {0, lane.stage_count() - 1};
  if (auto done = check_recorded_by_all(lane, Kind::kEmbeddingGradsAllReduce, ends); !done) return done;
  std::vector<std::int32_t> all(static_cast<std::size_t>(lane.stage_count()));
  std::iota(all.begin(), all.end(), 0);
  return check_recorded_by_all(lane, Kind::kOptimizerClipMainGrad, all);
}

Result<void> check_kinds(const LaneOps& lane) {
  for (OpIndex i = 0; i < lane.size(); ++i) {
    const Op& op = lane.op(i);
    if (!contains(kP2pKinds, op.kind) && !contains(kDpKinds, op.kind) && !contains(kOtherKinds, op.kind)) {
      return Error{"the reference rules have no place for " + describe(op)};
    }
    const bool is_compute = op.kind == Kind::kForwardCompute || op.kind == Kind::kBackwardCompute;
    if (is_compute && (op.chunk < 0 || op.global_chunk < 0)) return Error{describe(op) + " has no chunk"};
    const bool at_end = op.stage == 0 || op.stage == lane.stage_count() - 1;
    if (op.kind == Kind::kEmbeddingGradsAllReduce && !at_end) {
      return Error{describe(op) + " is on neither the first nor the last stage"};
    }
  }
  return {};
}

}  // namespace

Result<OpGraph> build_reference_graph(std::span<const RecordedOp> recorded, std::int32_t pp_size) {
  auto lane = LaneOps::sort(recorded, pp_size);
  if (!lane) return lane.error();
  if (auto known = check_kinds(*lane); !known) return known.error();
  if (auto complete = check_collectives(*lane); !complete) return complete.error();
  return ReferenceRules(*lane).build();
}

}  // namespace smon_rt::analysis
