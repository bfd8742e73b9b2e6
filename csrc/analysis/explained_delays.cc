#include "analysis/explained_delays.h"

#include <algorithm>
#include <span>
#include <tuple>

namespace smon_rt::analysis {
namespace {

using TimeByWork = std::array<double, kHostWorkCount>;

// When one worker of one lane was at work of the host.
class WorkTimes {
 public:
  // One object for all workers: its vector keeps its memory.
  void take(const LaneTable& table, std::size_t lane, std::span<const LaunchedOp> launches) {
    pieces_.clear();
    for (const LaunchedOp& launched : launches) {
      const std::optional<HostWork> work = host_work_of(table.template_ops()[launched.op].op.kind);
      if (!work || !launched.is_in_stream) continue;
      pieces_.push_back({table.starts_ns(launched.op)[lane], table.ends_ns(launched.op)[lane], *work, {}});
    }
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
      return std::tie(a.start, a.end, a.work) < std::tie(b.start, b.end, b.work);
    });
    TimeByWork before{};
    double busy_until = 0;
    for (Piece& piece : pieces_) {
      piece.start = std::max(piece.start, busy_until);
      piece.end = std::max(piece.end, piece.start);
      piece.before = before;
      before[static_cast<std::size_t>(piece.work)] += piece.end - piece.start;
      busy_until = piece.end;
    }
  }

  bool is_empty() const { return pieces_.empty(); }

  TimeByWork between(double from, double to) const {
    TimeByWork time = until(to);
    const TimeByWork earlier = until(from);
    for (std::size_t work = 0; work < kHostWorkCount; ++work) time[work] -= earlier[work];
    return time;
  }

 private:
  struct Piece {
    double start;
    double end;
    HostWork work;
    TimeByWork before;  // all that came before this piece
  };

  TimeByWork until(double time) const {
    const auto next = std::upper_bound(pieces_.begin(), pieces_.end(), time,
                                       [](double value, const Piece& piece) { return value < piece.start; });
    if (next == pieces_.begin()) return {};
    const Piece& last = *(next - 1);
    TimeByWork result = last.before;
    result[static_cast<std::size_t>(last.work)] += std::min(time, last.end) - last.start;
    return result;
  }

  std::vector<Piece> pieces_;  // disjoint, ascending
};

}  // namespace

std::optional<HostWork> host_work_of(Kind kind) {
  switch (kind) {
    case Kind::kGc:
      return HostWork::kGc;
    case Kind::kDataLoading:
      return HostWork::kDataLoading;
    case Kind::kCheckpointSnapshot:
    case Kind::kCheckpointWait:
      return HostWork::kCheckpoint;
    case Kind::kEval:
    case Kind::kUser:
      return HostWork::kOther;
    default:
      return std::nullopt;
  }
}

std::vector<ExplainedDelay> explained_delays(const IdLanes& lanes, const OpTiming& timing) {
  std::vector<ExplainedDelay> result;
  const std::size_t pp_size = lanes.worker_count() / timing.lane_count;
  WorkTimes work_times;
  for (std::size_t worker = 0; worker < lanes.worker_count(); ++worker) {
    const std::size_t lane = worker / pp_size;
    work_times.take(lanes.table, lane, lanes.launches(worker));
    if (work_times.is_empty()) continue;
    for (const LaunchedOp& launched : lanes.launches(worker)) {
      const double delay = timing.launch_delays(launched.op)[lane];
      if (delay <= 0) continue;
      const double start = lanes.table.starts_ns(launched.op)[lane];
      const ExplainedDelay found{launched.op, static_cast<std::uint32_t>(lane),
                                 work_times.between(start - delay, start)};
      if (found.total_ns() > 0) result.push_back(found);
    }
  }
  std::sort(result.begin(), result.end(), [](const ExplainedDelay& a, const ExplainedDelay& b) {
    return std::tie(a.op, a.lane) < std::tie(b.op, b.lane);
  });
  return result;
}

}  // namespace smon_rt::analysis
