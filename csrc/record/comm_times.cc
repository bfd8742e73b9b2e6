#include "record/comm_times.h"

#include <algorithm>
#include <utility>

#include "format/span_coding.h"

namespace smon_rt {

CommTimes::CommTimes(FindCommTracker find, const Clock& clock, const ClockConverter& converter, EventResolver& resolver)
    : find_(find), clock_(clock), converter_(converter), resolver_(resolver) {
  // What came before is another recording's.
  if (const CommTracker* found = tracker()) {
    next_ = seen_end_ = settled_end_ = found->op_end();
    seen_kernel_ops_ = found->kernel_ops();
  }
}

std::size_t CommTimes::KeyHash::operator()(const Key& key) const noexcept {
  const std::uint64_t high = std::uint64_t{key.comm_id} << 8 | static_cast<std::uint64_t>(key.kind);
  const std::uint64_t low = std::uint64_t{static_cast<std::uint32_t>(key.peer)} << 32 | key.comm_seq;
  return static_cast<std::size_t>((high * 0x9e37'79b9'7f4a'7c15 ^ low) * 0xd6e8'feb8'6659'fd93 >> 16);
}

CommTimes::Key CommTimes::key_of(const Span& span) {
  return {span.name_or_comm_id, span.kind, span.peer, span.comm_seq};
}

bool CommTimes::look() {
  const CommTracker* found = tracker();
  if (found == nullptr) return false;
  settled_end_ = std::exchange(seen_end_, found->op_end());
  if (!note_new(*found)) return false;
  bool is_any_waiting = false;
  for (auto& [key, ops] : spans_) {
    settle(*found, ops);
    is_any_waiting = is_any_waiting || !ops.waiting.empty();
  }
  return is_any_waiting;
}

bool CommTimes::note_new(const CommTracker& tracker) {
  const std::uint64_t end = tracker.op_end();  // first: none of those before it asks and is not counted yet
  if (tracker.kernel_ops() == seen_kernel_ops_ && spans_.empty()) return false;
  seen_kernel_ops_ = tracker.kernel_ops();
  if (end - next_ > CommTracker::kOps) next_ = end - CommTracker::kOps;
  for (; next_ != end; ++next_) {
    CommOp op;
    if (tracker.read_op(next_, &op)) {
      take(next_, op);
    } else if (next_ >= settled_end_) {
      break;  // just being written; else a number that no op has got, since its slot was in use
    }
  }
  forget_old(end);
  return !spans_.empty();
}

void CommTimes::take(std::uint64_t number, const CommOp& op) {
  // What was captured runs when the graph is launched, as often as it is.
  if (!op.facts.asks_kernels || op.comm_seq == 0 || op.is_captured) return;
  has_asked_ = true;
  const Key key{op.comm_id, op.span_kind, op.span_peer, op.comm_seq};
  const auto [at, is_new] = spans_.try_emplace(key);
  if (is_new) order_.emplace_back(number, key);
  at->second.waiting.push_back(number);
}

/// Spans that were dropped, or are open for so long that nothing is known of their ops any more.
void CommTimes::forget_old(std::uint64_t end) {
  while (!order_.empty() && end - order_.front().first > 2 * CommTracker::kOps) {
    spans_.erase(order_.front().second);
    order_.pop_front();
  }
}

CommTimes::OpState CommTimes::state_of(const CommOp& op, std::int64_t now_ns) const {
  if (op.has_rejected_times) return OpState::kLost;
  if (op.kernels != 0 && op.open_kernels == 0 && op.kernel_stop_device_ns != 0 &&
      (op.kernels >= op.facts.channel_count || converter_.to_monotonic_ns(op.kernel_seen_ticks) < now_ns - kQuietNs)) {
    return OpState::kEnded;
  }
  return converter_.to_monotonic_ns(op.start_ticks) < now_ns - kGiveUpNs ? OpState::kLost : OpState::kRuns;
}

void CommTimes::settle(const CommTracker& tracker, Ops& ops) {
  if (ops.waiting.empty()) return;
  const std::int64_t now_ns = converter_.to_monotonic_ns(clock_.ticks());
  std::erase_if(ops.waiting, [&](std::uint64_t number) {
    CommOp op;
    const OpState state = tracker.read_op(number, &op) ? state_of(op, now_ns) : OpState::kLost;
    if (state == OpState::kRuns) return false;
    if (state == OpState::kLost) {
      ops.is_lost = true;
      return true;
    }
    ops.start_ns = std::min(ops.start_ns, op.kernel_start_device_ns);
    ops.stop_ns = std::max(ops.stop_ns, op.kernel_stop_device_ns);
    ops.brackets.push_back({op.kernel_start_device_ns, op.start_ticks, op.kernel_begun_ticks});
    ops.brackets.push_back({op.kernel_stop_device_ns, op.start_ticks, op.kernel_seen_ticks});
    return true;
  });
}

std::uint64_t CommTimes::writable_until(std::span<const Span> ring, std::uint64_t begin, std::uint64_t end,
                                        bool give_up) {
  const CommTracker* found = tracker();
  // Again: ops of spans that have come since the last look.
  if (found == nullptr || !note_new(*found) || give_up) return end;
  for (std::uint64_t index = begin; index < end; ++index) {
    const Span& span = ring[index & (ring.size() - 1)];
    if (span.comm_seq == 0 || !is_communication(span.kind)) continue;
    const auto ops = spans_.find(key_of(span));
    if (ops != spans_.end() && !ops->second.waiting.empty()) return index;
  }
  return end;
}

void CommTimes::add_times(std::span<Span> spans) {
  if (spans_.empty()) return;
  for (Span& span : spans) {
    if (span.comm_seq == 0 || !is_communication(span.kind)) continue;
    const auto found = spans_.find(key_of(span));
    if (found == spans_.end()) continue;
    const Ops& ops = found->second;
    if (ops.is_lost || !ops.waiting.empty()) {
      if (!has_device_times(span.time_source)) ++host_only_spans_;
    } else {
      resolver_.release_events(span);
      const std::int32_t device = resolver_.device_of(span);
      for (const Bracket& bracket : ops.brackets) {
        resolver_.add_globaltimer(device, {.device_ns = static_cast<std::int64_t>(bracket.device_ns),
                                           .quantum_ns = kTimerQuantumNs,
                                           .recorded_ns = converter_.to_monotonic_ns(bracket.first_ticks),
                                           .ready_ns = converter_.to_monotonic_ns(bracket.last_ticks)});
      }
      span.time_source = TimeSource::kNcclGlobaltimer;
      span.device_start = static_cast<std::int64_t>(ops.start_ns);
      span.device_end = static_cast<std::int64_t>(ops.stop_ns);
    }
    spans_.erase(found);
  }
}

}  // namespace smon_rt
