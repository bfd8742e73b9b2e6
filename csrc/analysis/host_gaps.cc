#include "analysis/host_gaps.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "analysis/launch_order.h"

namespace smon_rt::analysis {
namespace {

// When one worker of one lane was busy: disjoint, ascending, with the time busy before each.
class BusyTimes {
 public:
  // One object for all workers: its vectors keep their memory.
  void take(const LaneTable& table, std::size_t lane, std::span<const LaunchedOp> launches) {
    pieces_.clear();
    events_.clear();
    for (const LaunchedOp& launched : launches) {
      events_.push_back(table.starts_ns(launched.op)[lane]);
      if (launched.is_in_stream) events_.push_back(table.ends_ns(launched.op)[lane]);
    }
    std::sort(events_.begin(), events_.end());
    for (const LaunchedOp& launched : launches) {
      const Role role = role_of(table.template_ops()[launched.op].op.kind);
      if (!launched.is_in_stream && !table.waited().has(launched.op, lane) && !launched.was_inside) continue;
      double start = table.starts_ns(launched.op)[lane];
      const double end = table.ends_ns(launched.op)[lane];
      if (role == Role::kP2p && launched.is_waited_by_compute) start = std::max(start, last_event_before(end));
      if (end > start) pieces_.push_back({start, end, 0});
    }
    merge();
  }

  double busy_between(double from, double to) const { return busy_until(to) - busy_until(from); }

 private:
  struct Piece {
    double start = 0;
    double end = 0;
    double busy_before = 0;
  };

  double last_event_before(double time) const {
    const auto next = std::lower_bound(events_.begin(), events_.end(), time);
    return next == events_.begin() ? time : *(next - 1);
  }

  void merge() {
    std::sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) { return a.start < b.start; });
    std::size_t count = 0;
    for (const Piece& piece : pieces_) {
      if (count > 0 && piece.start <= pieces_[count - 1].end) {
        pieces_[count - 1].end = std::max(pieces_[count - 1].end, piece.end);
      } else {
        pieces_[count++] = piece;
      }
    }
    pieces_.resize(count);
    double busy = 0;
    for (Piece& piece : pieces_) {
      piece.busy_before = busy;
      busy += piece.end - piece.start;
    }
  }

  double busy_until(double time) const {
    const auto next = std::upper_bound(pieces_.begin(), pieces_.end(), time,
                                       [](double value, const Piece& piece) { return value < piece.start; });
    if (next == pieces_.begin()) return 0;
    const Piece& last = *(next - 1);
    return last.busy_before + std::min(time, last.end) - last.start;
  }

  std::vector<double> events_;
  std::vector<Piece> pieces_;
};

}  // namespace

LaneBuffer host_gaps(const IdLanes& lanes, const OpGraph& graph, const OpTiming& timing) {
  const std::size_t lane_count = timing.lane_count;
  LaneBuffer gaps(graph.size() * lane_count);
  std::fill_n(gaps.data(), gaps.size(), 0.0);
  const std::size_t pp_size = lanes.worker_count() / lane_count;
  BusyTimes busy;
  for (std::size_t worker = 0; worker < lanes.worker_count(); ++worker) {
    const std::size_t lane = worker / pp_size;
    busy.take(lanes.table, lane, lanes.launches(worker));
    for (const LaunchedOp& launched : lanes.launches(worker)) {
      const double delay = timing.launch_delays(launched.op)[lane];
      if (delay <= 0) continue;
      const double start = lanes.table.starts_ns(launched.op)[lane];
      gaps.data()[launched.op * lane_count + lane] = delay - busy.busy_between(start - delay, start);
    }
  }
  return gaps;
}

}  // namespace smon_rt::analysis
