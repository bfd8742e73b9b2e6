#include "analysis/id_graph.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <unordered_set>
#include <utility>
#include <vector>

#include "analysis/launch_order.h"

namespace smon_rt::analysis {
namespace {

bool is_recv(Kind kind) {
  return kind == Kind::kForwardRecv || kind == Kind::kBackwardRecv;
}

Kind compute_of(Kind p2p) {
  return p2p == Kind::kForwardSend || p2p == Kind::kForwardRecv ? Kind::kForwardCompute : Kind::kBackwardCompute;
}

// Collectives that name the chunk whose parameters or gradients they carry.
bool belongs_to_chunk(const Op& op) {
  return op.chunk >= 0 && (op.kind == Kind::kParamsAllGather || op.kind == Kind::kGradsReduceScatter ||
                           op.kind == Kind::kGradsAllReduce);
}

// The ops of one kind, or some other selection, of one worker and step, in launch order.
using Track = std::vector<OpIndex>;

// The times of one lane.
class LaneTimes {
 public:
  LaneTimes(const LaneTable& table, std::size_t lane, double tolerance_ns)
      : table_(table), lane_(lane), tolerance_ns_(tolerance_ns) {}

  double start(OpIndex op) const { return table_.starts_ns(op)[lane_]; }
  double end(OpIndex op) const { return table_.ends_ns(op)[lane_]; }
  bool has(OpIndex op) const { return table_.recorded().has(op, lane_); }

  std::optional<OpIndex> last_ended(const Track& track, double by) const {
    // Few ops of a track overlap; a track in which all do has no last one.
    constexpr int kMaxOverlap = 64;
    auto next =
        std::upper_bound(track.begin(), track.end(), by, [&](double time, OpIndex op) { return time < start(op); });
    for (int i = 0; i < kMaxOverlap && next != track.begin(); ++i) {
      if (end(*--next) <= by + tolerance_ns_) return *next;
    }
    return std::nullopt;
  }

  std::optional<OpIndex> first_started(const Track& track, double from) const {
    const auto next = std::lower_bound(track.begin(), track.end(), from - tolerance_ns_,
                                       [&](OpIndex op, double time) { return start(op) < time; });
    return next == track.end() ? std::nullopt : std::optional(*next);
  }

 private:
  const LaneTable& table_;
  std::size_t lane_;
  double tolerance_ns_;
};

// One worker of one lane, taken apart.
struct WorkerTracks {
  std::array<Track, kKindCount> by_kind;  // those outside the compute stream, and the computes
  Track stream;
  Track forward_backward;
  std::map<std::int32_t, Track> computes_of_chunk;
  std::map<std::int32_t, Track> forwards_of_chunk;
  double last_compute_end = 0;

  // One object for all workers: its vectors keep their memory.
  void take(const std::vector<RecordedOp>& ops, std::span<const LaunchedOp> launches, const LaneTimes& times) {
    for (Track& track : by_kind) track.clear();
    stream.clear();
    forward_backward.clear();
    for (auto& [chunk, track] : computes_of_chunk) track.clear();
    for (auto& [chunk, track] : forwards_of_chunk) track.clear();
    last_compute_end = 0;
    for (const LaunchedOp& launched : launches) {
      const Op& op = ops[launched.op].op;
      const bool is_compute = op.kind == Kind::kForwardCompute || op.kind == Kind::kBackwardCompute;
      if (launched.is_in_stream) stream.push_back(launched.op);
      if (!launched.is_in_stream || is_compute) by_kind[static_cast<std::size_t>(op.kind)].push_back(launched.op);
      if (!is_compute) continue;
      forward_backward.push_back(launched.op);
      computes_of_chunk[op.chunk].push_back(launched.op);
      if (op.kind == Kind::kForwardCompute) forwards_of_chunk[op.chunk].push_back(launched.op);
      last_compute_end = std::max(last_compute_end, times.end(launched.op));
    }
  }

  const Track& of(Kind kind) const { return by_kind[static_cast<std::size_t>(kind)]; }
};

/// Which lanes must show that one op follows another.
enum class Shown { kWhereBothAre, kWhereEitherIs };

class IdRules {
 public:
  IdRules(const IdLanes& lanes, double tolerance_ns, Shown shown)
      : lanes_(lanes),
        ops_(lanes.table.template_ops()),
        tolerance_ns_(tolerance_ns),
        shown_(shown),
        compute_served_by_(ops_.size()) {
    for (const RecordedOp& recorded : ops_) graph_.add_op(recorded.op);
    graph_.end_step_with_any_op();
  }

  Result<OpGraph> build() && {
    for (const auto& [before, after] : lanes_.stream_edges) graph_.add_dependency(after, before);
    match_transfers();
    const std::size_t pp_size = lanes_.worker_count() / lanes_.table.lane_count();
    for (std::size_t worker = 0; worker < lanes_.worker_count(); ++worker) {
      look_at(lanes_.launches(worker), LaneTimes(lanes_.table, worker / pp_size, tolerance_ns_));
    }
    add_what_all_lanes_show();
    for (const Group& group : lanes_.groups) graph_.add_group(group);
    add_collectives_of_one();
    return std::move(graph_).build();
  }

 private:
  const Op& op(OpIndex index) const { return ops_[index].op; }

  // Where one worker of a stage was recorded alone its collectives have no partner, and yet wait for the other dp
  // ranks.
  void add_collectives_of_one() {
    const LaneTable& table = lanes_.table;
    const std::size_t pp_size = table.worker_ranks().size() / table.dp_size();
    if (table.dp_size() == 1) return;
    std::vector<std::size_t> recorded(pp_size, 0);
    for (std::size_t worker = 0; worker < table.worker_ranks().size(); ++worker) {
      if (table.worker_ranks()[worker] >= 0) ++recorded[worker % pp_size];
    }
    std::vector<bool> has_group(ops_.size(), false);
    for (const Group& group : lanes_.groups) {
      for (OpIndex member : group.members) has_group[member] = true;
    }
    for (OpIndex i = 0; i < ops_.size(); ++i) {
      const bool is_of_one = recorded[static_cast<std::size_t>(op(i).stage)] == 1;
      if (is_of_one && !has_group[i] && is_dp_collective(op(i).kind)) graph_.add_group({i}, true);
    }
  }

  // Sends and recvs with the computes of the same ids.
  void match_transfers() {
    using Ids = std::tuple<Kind, std::int32_t, std::int32_t, std::int32_t>;
    std::map<Ids, std::vector<OpIndex>> computes;
    for (OpIndex i = 0; i < ops_.size(); ++i) {
      if (op(i).kind != Kind::kForwardCompute && op(i).kind != Kind::kBackwardCompute) continue;
      if (op(i).microbatch >= 0) computes[{op(i).kind, op(i).stage, op(i).chunk, op(i).microbatch}].push_back(i);
    }
    std::map<Ids, std::size_t> count;
    for (OpIndex i = 0; i < ops_.size(); ++i) {
      if (role_of(op(i).kind) != Role::kP2p || op(i).microbatch < 0) continue;
      const auto found = computes.find({compute_of(op(i).kind), op(i).stage, op(i).chunk, op(i).microbatch});
      if (found == computes.end()) continue;
      const std::size_t nth = count[{op(i).kind, op(i).stage, op(i).chunk, op(i).microbatch}]++;
      const OpIndex compute = found->second[std::min(nth, found->second.size() - 1)];
      compute_served_by_[i] = compute;
      if (is_recv(op(i).kind)) {
        graph_.add_dependency(compute, i);
      } else {
        graph_.add_dependency(i, compute);
        sends_of_[compute].push_back(i);
      }
    }
  }

  void seen(std::optional<OpIndex> before, OpIndex after) {
    if (before && *before != after) seen_.insert(std::uint64_t{after} << 32 | *before);
  }

  void look_at(std::span<const LaunchedOp> launches, const LaneTimes& times) {
    tracks_.take(ops_, launches, times);
    const WorkerTracks& tracks = tracks_;
    std::array<std::optional<OpIndex>, kKindCount> last_of_kind;
    last_of_communicator_.clear();
    LaunchedOp last;
    std::optional<OpIndex> last_compute;
    bool is_first = true;
    for (const LaunchedOp& launched : launches) {
      const Kind kind = op(launched.op).kind;
      if (launched.is_in_stream && !launched.was_inside) last_compute = launched.op;
      if (launched.was_inside && last_compute) look_at_inside(*last_compute, launched.op);
      if (launched.is_in_stream || launched.was_inside) {
        // Between stream ops alone the merged order holds; communication inside a compute in this lane may be
        // overlapped with it in another.
        const bool is_sure = last.is_in_stream && launched.is_in_stream;
        if (!is_first && !is_sure) seen(last.op, launched.op);
        last = launched;
        is_first = false;
      }
      if (kind == Kind::kOptimizer || kind == Kind::kOptimizerClipMainGrad) {
        see_communication_before(launched.op, tracks, times);
      }
      if (launched.is_in_stream) continue;
      // Communicators run side by side, each one its own collectives one after the other, whatever their kinds.
      const bool has_communicator = role_of(kind) == Role::kCollective && launched.communicator >= 0;
      std::optional<OpIndex>& last_like_it = has_communicator ? last_of_communicator_[launched.communicator]
                                                              : last_of_kind[static_cast<std::size_t>(kind)];
      seen(last_like_it, launched.op);
      last_like_it = launched.op;
      if (role_of(kind) == Role::kP2p) {
        look_at_transfer(launched, tracks, times);
      } else if (!launched.was_inside) {
        look_at_collective(launched.op, tracks, times, has_communicator);
      }
    }
    look_at_first_backward(tracks);
  }

  void look_at_inside(OpIndex compute, OpIndex inside) {
    const auto sends = sends_of_.find(compute);
    if (sends == sends_of_.end()) return;
    for (OpIndex send : sends->second) seen(inside, send);
  }

  void look_at_transfer(const LaunchedOp& launched, const WorkerTracks& tracks, const LaneTimes& times) {
    const OpIndex transfer = launched.op;
    const Track& computes = tracks.of(compute_of(op(transfer).kind));
    const std::optional<OpIndex>& served = compute_served_by_[transfer];
    const bool is_served = served && times.has(*served);
    if (is_recv(op(transfer).kind) || !is_served) seen(times.last_ended(computes, times.start(transfer)), transfer);
    if (is_recv(op(transfer).kind) && launched.is_waited_by_compute) {
      // The thread that waits was computing before, in either direction.
      seen(times.last_ended(tracks.stream, times.start(transfer)), transfer);
    }
    if (is_served && !is_recv(op(transfer).kind)) look_at_late_send(transfer, times.end(*served), tracks, times);
    if (is_recv(op(transfer).kind) && !is_served) {
      if (const auto next = times.first_started(computes, times.end(transfer))) seen(transfer, *next);
    }
  }

  // A backward may be over for its worker only when the gradients that it sent off are reduced: then its send waits for
  // these collectives, too.
  void look_at_late_send(OpIndex send, double computed, const WorkerTracks& tracks, const LaneTimes& times) {
    for (std::size_t kind = 0; kind < kKindCount; ++kind) {
      if (role_of(static_cast<Kind>(kind)) != Role::kCollective) continue;
      const auto last = times.last_ended(tracks.by_kind[kind], times.start(send));
      if (last && times.end(*last) > computed && times.end(*last) <= times.start(send)) seen(last, send);
    }
  }

  // By the reference rules too: whatever forward ran last, the one before it had been sent on.
  void look_at_first_backward(const WorkerTracks& tracks) {
    const Track& computes = tracks.forward_backward;
    const auto first =
        std::find_if(computes.begin(), computes.end(), [&](OpIndex i) { return op(i).kind == Kind::kBackwardCompute; });
    if (first == computes.end() || first - computes.begin() < 2) return;
    for (Kind kind : {Kind::kBackwardRecv, Kind::kBackwardSend}) {
      if (!tracks.of(kind).empty()) seen(*(first - 2), tracks.of(kind).front());
    }
  }

  void look_at_collective(OpIndex collective, const WorkerTracks& tracks, const LaneTimes& times,
                          bool has_communicator) {
    const Op& self = op(collective);
    const double start = times.start(collective);
    const bool is_after_compute = start >= tracks.last_compute_end - tolerance_ns_;
    if (belongs_to_chunk(self)) {
      const auto computes = tracks.computes_of_chunk.find(self.chunk);
      if (computes != tracks.computes_of_chunk.end()) seen(times.last_ended(computes->second, start), collective);
    }
    if (!belongs_to_chunk(self) || is_after_compute) seen(times.last_ended(tracks.stream, start), collective);
    if (is_after_compute) see_communication_before(collective, tracks, times, has_communicator);

    const double end = times.end(collective);
    std::optional<OpIndex> next;
    if (self.kind == Kind::kCollective) {
      next = times.first_started(tracks.stream, end);
    } else if (self.kind == Kind::kParamsAllGather) {
      const auto forwards = tracks.forwards_of_chunk.find(self.chunk);
      const bool has_chunk = forwards != tracks.forwards_of_chunk.end() && !forwards->second.empty();
      next = times.first_started(has_chunk ? forwards->second : tracks.of(Kind::kForwardCompute), end);
    }
    if (next) seen(collective, *next);
  }

  // The last collective of each kind, and the last backward send, that had ended before `after` started. Not of its own
  // kind where communicators tell who follows whom.
  void see_communication_before(OpIndex after, const WorkerTracks& tracks, const LaneTimes& times,
                                bool has_communicator = false) {
    for (std::size_t kind = 0; kind < kKindCount; ++kind) {
      if (has_communicator && static_cast<Kind>(kind) == op(after).kind) continue;
      const bool is_asked =
          role_of(static_cast<Kind>(kind)) == Role::kCollective || static_cast<Kind>(kind) == Kind::kBackwardSend;
      if (is_asked) seen(times.last_ended(tracks.by_kind[kind], times.start(after)), after);
    }
  }

  void add_what_all_lanes_show() {
    std::vector<std::uint64_t> edges(seen_.begin(), seen_.end());
    std::sort(edges.begin(), edges.end());
    for (std::uint64_t edge : edges) {
      const auto after = static_cast<OpIndex>(edge >> 32);
      const auto before = static_cast<OpIndex>(edge & 0xffffffffu);
      if (no_lane_contradicts(before, after)) graph_.add_dependency(after, before);
    }
  }

  bool no_lane_contradicts(OpIndex before, OpIndex after) const {
    const LaneTable& table = lanes_.table;
    const double* ends = table.ends_ns(before);
    const double* starts = table.starts_ns(after);
    for (std::size_t lane = 0; lane < table.lane_count(); ++lane) {
      const bool has_before = table.recorded().has(before, lane), has_after = table.recorded().has(after, lane);
      if (shown_ == Shown::kWhereEitherIs && has_before != has_after) return false;
      if (ends[lane] <= starts[lane] + tolerance_ns_) continue;
      if (has_before && has_after) return false;
    }
    return true;
  }

  const IdLanes& lanes_;
  const std::vector<RecordedOp>& ops_;
  double tolerance_ns_;
  Shown shown_;
  OpGraphBuilder graph_;
  std::vector<std::optional<OpIndex>> compute_served_by_;  // per transfer
  std::map<OpIndex, std::vector<OpIndex>> sends_of_;       // per compute
  WorkerTracks tracks_;
  std::map<std::int32_t, std::optional<OpIndex>> last_of_communicator_;  // of the worker at hand
  std::unordered_set<std::uint64_t> seen_;                               // after << 32 | before
};

}  // namespace

Result<OpGraph> build_graph(const IdLanes& lanes, double tolerance_ns) {
  auto graph = IdRules(lanes, tolerance_ns, Shown::kWhereBothAre).build();
  // Of two ops that are shorter than clocks may be apart each could have come after the other: by the times as they
  // are, neither could.
  if (!graph && tolerance_ns > 0) graph = IdRules(lanes, 0, Shown::kWhereBothAre).build();
  // Lanes of different steps may each show a part of a circle that none shows whole, by ops that are in few of them.
  if (!graph) graph = IdRules(lanes, 0, Shown::kWhereEitherIs).build();
  return graph;
}

}  // namespace smon_rt::analysis
