#include "analysis/launch_order.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_map>

namespace smon_rt::analysis {
namespace {

// The latest start of each group of a step.
class GroupStarts {
 public:
  GroupStarts(const OpColumns& columns, std::span<const std::uint32_t> step_of_row)
      : columns_(columns), step_of_row_(step_of_row) {
    for (std::size_t row = 0; row < columns.group_id.size(); ++row) {
      if (columns.group_id[row] < 0 || role_of(static_cast<Kind>(columns.kind[row])) == Role::kP2p) continue;
      const auto [start, is_new] = starts_.try_emplace(key(row), columns.start_ns[row]);
      if (!is_new) start->second = std::max(start->second, columns.start_ns[row]);
    }
  }

  /// The op's own start where no partner is known.
  std::int64_t of(std::size_t row) const {
    const auto found = columns_.group_id.empty() ? starts_.end() : starts_.find(key(row));
    return found == starts_.end() ? columns_.start_ns[row] : found->second;
  }

 private:
  struct Key {
    std::uint32_t step;
    std::int64_t group;
    bool operator==(const Key&) const = default;
  };
  struct Hash {
    std::size_t operator()(const Key& key) const {
      return static_cast<std::size_t>((static_cast<std::uint64_t>(key.group) * 0x9e3779b97f4a7c15u) ^
                                      (std::uint64_t{key.step} * 0xc2b2ae3d27d4eb4fu));
    }
  };

  Key key(std::size_t row) const { return {step_of_row_[row], columns_.group_id[row]}; }

  const OpColumns& columns_;
  std::span<const std::uint32_t> step_of_row_;
  std::unordered_map<Key, std::int64_t, Hash> starts_;
};

bool runs_in_stream(Kind kind) {
  return role_of(kind) == Role::kCompute || role_of(kind) == Role::kHost;
}

// Brings the ops of one worker and step, sorted by start, into launch order.
class WorkerLaunches {
 public:
  WorkerLaunches(const OpColumns& columns, std::span<Launch> ops, const GroupStarts& group_starts,
                 std::vector<Launch>& result)
      : c_(columns),
        ops_(ops),
        group_starts_(group_starts),
        result_(result),
        role_(ops.size()),
        is_inside_(ops.size(), false) {
    for (std::size_t i = 0; i < ops.size(); ++i) role_[i] = role_of(ops[i].kind);
    drop_wrappers();
  }

  void run() && {
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (role_[i] == Role::kNone || is_inside_[i]) continue;
      const bool is_in_stream = role_[i] == Role::kCompute || role_[i] == Role::kHost;
      if (!is_in_stream) {
        if (role_[i] == Role::kCollective) expose(ops_[i]);
        result_.push_back(ops_[i]);
        continue;
      }
      ops_[i].is_in_stream = true;
      if (role_[i] == Role::kCompute) compute_ = ops_[i];
      inside_.clear();
      collect_inside(i);
      if (inside_.empty()) {
        result_.push_back(ops_[i]);
      } else {
        take_out_of(ops_[i]);
      }
    }
  }

 private:
  void expose(Launch& op) const {
    if (op.start_ns <= compute_.start_ns || op.start_ns >= compute_.end_ns) return;
    op.start_ns = compute_.end_ns;
    op.end_ns = std::max(op.end_ns, compute_.end_ns);
    op.is_exposed_part = true;
  }

  // A host op during which a compute starts is a span about that compute, or of another thread.
  void drop_wrappers() {
    std::int64_t next_compute_start = 0;
    bool has_next = false;
    for (std::size_t i = ops_.size(); i-- > 0;) {
      if (role_[i] == Role::kHost && has_next && next_compute_start < ops_[i].end_ns) role_[i] = Role::kNone;
      if (role_[i] == Role::kCompute) {
        next_compute_start = ops_[i].start_ns;
        has_next = true;
      }
    }
  }

  void collect_inside(std::size_t container) {
    const std::int64_t end_ns = ops_[container].end_ns;
    for (std::size_t i = container + 1; i < ops_.size() && ops_[i].start_ns < end_ns; ++i) {
      if (role_[i] == Role::kNone || role_[i] == Role::kP2p || is_inside_[i] || ops_[i].end_ns > end_ns) continue;
      if (role_[i] == Role::kCollective) {
        // Launched together with the compute is not launched by it.
        if (ops_[i].start_ns == ops_[container].start_ns) continue;
        if (!c_.is_waited.empty() && c_.is_waited[ops_[i].row] != OpColumns::kWaitedByCompute) continue;
      }
      is_inside_[i] = true;
      inside_.push_back(i);
    }
  }

  // How long the compute stood still for each op inside it.
  std::vector<std::int64_t> waits() const {
    std::vector<std::int64_t> starts;  // ascending, as the ops are sorted
    for (std::size_t i : inside_) starts.push_back(ops_[i].start_ns);
    std::vector<std::size_t> by_end(inside_.size());
    std::iota(by_end.begin(), by_end.end(), std::size_t{0});
    std::stable_sort(by_end.begin(), by_end.end(),
                     [&](std::size_t a, std::size_t b) { return ops_[inside_[a]].end_ns < ops_[inside_[b]].end_ns; });
    std::vector<std::int64_t> result(inside_.size());
    std::size_t started = 0;
    bool has_ended = false;
    std::int64_t last_end = 0;
    for (std::size_t place : by_end) {
      const Launch& op = ops_[inside_[place]];
      while (started < starts.size() && starts[started] < op.end_ns) ++started;
      std::int64_t since = has_ended ? std::max(op.start_ns, last_end) : op.start_ns;
      std::int64_t until = op.end_ns;
      if (role_of(op.kind) == Role::kCollective) {
        // While it still launched others it did not wait for this one.
        if (started > 0) since = std::max(since, starts[started - 1]);
        until = std::min(until, group_starts_.of(op.row));
      }
      result[place] = std::max(std::int64_t{0}, until - since);
      last_end = op.end_ns;
      has_ended = true;
    }
    return result;
  }

  void take_out_of(Launch container) {
    const std::vector<std::int64_t> wait = waits();
    std::int64_t total = 0;
    for (std::int64_t each : wait) total += each;
    const bool comes_first = container.kind == Kind::kOptimizer;
    std::int64_t at = comes_first ? container.start_ns : container.end_ns - total;
    if (comes_first) {
      container.start_ns += total;
    } else {
      container.end_ns -= total;
      result_.push_back(container);
    }
    for (std::size_t i = 0; i < inside_.size(); ++i) {
      Launch op = ops_[inside_[i]];
      op.is_in_stream = role_of(op.kind) != Role::kCollective;
      op.was_inside = true;
      op.start_ns = at;
      op.end_ns = at += wait[i];
      result_.push_back(op);
    }
    if (comes_first) result_.push_back(container);
  }

  const OpColumns& c_;
  std::span<Launch> ops_;
  const GroupStarts& group_starts_;
  std::vector<Launch>& result_;
  std::vector<Role> role_;
  std::vector<bool> is_inside_;
  std::vector<std::size_t> inside_;  // of the container at hand
  Launch compute_;                   // the last one, as recorded
};

}  // namespace

bool is_dp_collective(Kind kind) {
  return std::find(kDpCollectives.begin(), kDpCollectives.end(), kind) != kDpCollectives.end();
}

Role role_of(Kind kind) {
  switch (kind) {
    case Kind::kForwardCompute:
    case Kind::kBackwardCompute:
    case Kind::kForwardBackwardCombined:
    case Kind::kOptimizerClipMainGrad:
    case Kind::kOptimizer:
      return Role::kCompute;
    case Kind::kDataLoading:
    case Kind::kGc:
    case Kind::kCheckpointSnapshot:
    case Kind::kCheckpointWait:
    case Kind::kEval:
    case Kind::kUser:
      return Role::kHost;
    case Kind::kForwardSend:
    case Kind::kForwardRecv:
    case Kind::kBackwardSend:
    case Kind::kBackwardRecv:
      return Role::kP2p;
    case Kind::kParamsAllGather:
    case Kind::kGradsReduceScatter:
    case Kind::kGradsAllReduce:
    case Kind::kLayernormGradsAllReduce:
    case Kind::kEmbeddingGradsAllReduce:
    case Kind::kSeparateGradsAllReduce:
    case Kind::kCollective:
      return Role::kCollective;
    case Kind::kStep:
    case Kind::kStartup:
    case Kind::kMetric:
      return Role::kNone;
  }
  return Role::kNone;
}

LaunchOrder::LaunchOrder(const OpColumns& c, const JobLayout& layout, std::span<const std::uint32_t> step_of_row,
                         std::size_t step_count) {
  const auto dp_size = static_cast<std::size_t>(layout.dp_size);
  const auto pp_size = static_cast<std::size_t>(layout.pp_size);
  auto worker_of = [&](std::size_t row) {
    return (step_of_row[row] * dp_size + static_cast<std::size_t>(c.dp_rank[row])) * pp_size +
           static_cast<std::size_t>(c.stage[row]);
  };
  std::vector<std::size_t> place(step_count * dp_size * pp_size + 1, 0);
  for (std::size_t row = 0; row < c.size(); ++row) ++place[worker_of(row) + 1];
  for (std::size_t worker = 1; worker < place.size(); ++worker) place[worker] += place[worker - 1];
  const std::vector<std::size_t> begin = place;
  std::vector<Launch> sorted(c.size());
  for (std::size_t row = 0; row < c.size(); ++row) {
    Launch& launch = sorted[place[worker_of(row)]++];
    launch.row = static_cast<std::uint32_t>(row);
    launch.kind = static_cast<Kind>(c.kind[row]);
    launch.start_ns = c.start_ns[row];
    launch.end_ns = c.start_ns[row] + c.duration_ns[row];
  }
  const GroupStarts group_starts(c, step_of_row);
  launches_.reserve(c.size());
  begin_.push_back(0);
  for (std::size_t worker = 0; worker + 1 < begin.size(); ++worker) {
    const std::span<Launch> ops(sorted.data() + begin[worker], begin[worker + 1] - begin[worker]);
    std::sort(ops.begin(), ops.end(), [&](const Launch& a, const Launch& b) {
      // Of two that start together the longer one may have the other inside it.
      const auto key = [&](const Launch& op) {
        return std::tuple(op.start_ns, !runs_in_stream(op.kind), -op.end_ns, c.seq_id[op.row], op.kind, op.row);
      };
      return key(a) < key(b);
    });
    WorkerLaunches(c, ops, group_starts, launches_).run();
    begin_.push_back(launches_.size());
  }
}

}  // namespace smon_rt::analysis
