#include "record/event_resolver.h"

#include <algorithm>
#include <cmath>

#include "record/gpu_spans.h"

namespace smon_rt {
namespace {

// The rate of the counter is known to some millionths by then.
constexpr std::int64_t kLeastCoveredNs = 10'000'000;
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::size_t kPastEvents = 64;
// An event that is sooner ready than the thread can look gains nothing by being expected.
constexpr std::int64_t kLeastForecastNs = 1'000'000;
// Half a millisecond of work each.
constexpr std::int64_t kForecastLineEveryNs = 20'000'000;

bool has_events(const Span& span) {
  return span.time_source == TimeSource::kGpuEvent || span.time_source == TimeSource::kWaitEvent;
}

}  // namespace

EventResolver::EventResolver(Arena& arena, const Interner& interner, GpuTimer& timer, const Clock& clock,
                             const ClockConverter& converter, PollOptions options)
    : arena_(arena),
      interner_(interner),
      timer_(timer),
      clock_(clock),
      converter_(converter),
      plan_(options),
      cursors_(arena.threads().size()) {}

bool EventResolver::activate() {
  if (is_active_) return true;
  if (converter_.covered_ns() < kLeastCoveredNs) return false;
  origin_ticks_ = clock_.ticks();
  origin_ns_ = converter_.to_monotonic_ns(origin_ticks_);
  ns_per_tick_ = converter_.mean_ns_per_tick();
  return is_active_ = true;
}

std::int64_t EventResolver::steady_ns(std::int64_t ticks) const {
  return origin_ns_ + std::llround(static_cast<double>(ticks - origin_ticks_) * ns_per_tick_);
}

std::int64_t EventResolver::to_monotonic_ns(std::int64_t steady_ns) const {
  const double ticks = static_cast<double>(steady_ns - origin_ns_) / ns_per_tick_;
  return converter_.to_monotonic_ns(origin_ticks_ + std::llround(ticks));
}

std::int64_t EventResolver::next_poll_in_ns() const {
  if (!is_active_ || is_stopped_) return INT64_MAX;
  const std::int64_t next_ns = plan_.next_ns();
  return next_ns == INT64_MIN ? 0 : std::max<std::int64_t>(0, next_ns - steady_ns(clock_.ticks()));
}

void EventResolver::poll() {
  if (!is_active_ || is_stopped_) return;
  const std::int64_t now_ns = steady_ns(clock_.ticks());
  if (plan_.is_burst_due(now_ns)) {
    plan_.looked_in_burst(now_ns);
    if (expected_stream_ != nullptr) ask(*expected_stream_);
  }
  if (!plan_.is_due(now_ns)) return;
  look();
  const bool is_sampled = arena_.header().is_sampled.load(std::memory_order_relaxed) != 0;
  plan_.looked(now_ns, is_sampled || (waiting_count_ > 0 && now_ns - last_found_ns_ < kSecondNs));
}

bool EventResolver::look() {
  if (!is_active_ || is_stopped_) return false;
  for (std::size_t thread = 0; thread < cursors_.size(); ++thread) scan(thread);
  for (auto& [key, stream] : streams_) ask(stream);
  return waiting_count_ > 0;
}

void EventResolver::scan(std::size_t thread) {
  const ThreadRecord& record = arena_.threads()[thread];
  Cursor& cursor = cursors_[thread];
  // acquire: pairs with the release with which a thread goes live: ring_id and capacity are set.
  if (record.state.load(std::memory_order_acquire) == ThreadState::kFree) return;
  if (cursor.ring_id != record.ring_id) {
    cursor = {};
    cursor.ring_id = record.ring_id;
  }
  // acquire: pairs with the producer's release in push: the entries before this index are written.
  const std::uint64_t end = record.write_index.load(std::memory_order_acquire);
  // What was taken out before anything was looked for had no events.
  cursor.seen = std::max(cursor.seen, record.read_index.load(std::memory_order_relaxed));
  const std::span<const Span> ring = arena_.ring(static_cast<std::uint32_t>(thread));
  for (; cursor.seen < end; ++cursor.seen) {
    const Span& span = ring[cursor.seen & (ring.size() - 1)];
    if (has_events(span)) add_span(thread, cursor.seen, span);
  }
}

void EventResolver::add_span(std::size_t thread, std::uint64_t index, const Span& span) {
  // Tracks have 16 bits: a thread whose stream nobody named has a number above them.
  const std::uint32_t key = span.track_id != kNoId ? span.track_id : 0x1'0000 + static_cast<std::uint32_t>(thread);
  Stream& stream = streams_[key];
  // Shared with the end of the span before, it was recorded before this one began.
  const std::int64_t begun_ns = steady_ns(span.start) - GpuSpans::kShareWithinNs;
  if (span.device_start != kNoEvent) add_event(span.device_start, span, begun_ns, stream);
  if (span.device_end != kNoEvent) add_event(span.device_end, span, steady_ns(span.end), stream);
  cursors_[thread].waiting.push_back({index, span.device_start, span.device_end});
  last_found_ns_ = steady_ns(clock_.ticks());
}

void EventResolver::add_event(EventSlot slot, const Span& span, std::int64_t recorded_ns, Stream& stream) {
  Event& event = events_[slot];
  if (++event.references > 1) return;
  event.step = span.step;
  event.sort = static_cast<std::uint8_t>(static_cast<unsigned>(span.kind) << 1 | (slot == span.device_end ? 1 : 0));
  event.recorded_ns = recorded_ns;
  event.issued_ns = steady_ns(span.start);
  // A span that has others inside is in the ring behind them, and began before them.
  auto at = stream.waiting.end();
  while (at != stream.waiting.begin()) {
    const auto before = events_.find(*(at - 1));
    if (before == events_.end() || before->second.recorded_ns <= recorded_ns) break;
    --at;
  }
  stream.waiting.insert(at, slot);
  ++waiting_count_;
}

void EventResolver::ask(Stream& stream) {
  while (!stream.waiting.empty()) {
    const EventSlot slot = stream.waiting.front();
    const auto found = events_.find(slot);
    if (found == events_.end()) {  // its span was written without it
      stream.waiting.pop_front();
      continue;
    }
    Event& event = found->second;
    if (event.state != State::kWaiting) {  // shared, and asked for with the other span
      stream.waiting.pop_front();
      continue;
    }
    const std::int64_t before_ns = steady_ns(clock_.ticks());
    if (!plan_.take_query(before_ns)) return;
    const EventState state = timer_.query(slot);
    const std::int64_t after_ns = steady_ns(clock_.ticks());
    if (state == EventState::kNotReady) {
      stream.not_ready_ns = before_ns;
      if (before_ns - event.recorded_ns < plan_.options().give_up_ns) return;
    }
    stream.waiting.pop_front();
    --waiting_count_;
    if (slot == expected_) plan_.end_burst();
    if (state == EventState::kReady) {
      take_ready(slot, event, stream, after_ns);
    } else {
      event.state = State::kFailed;
    }
  }
}

void EventResolver::take_ready(EventSlot slot, Event& event, Stream& stream, std::int64_t ready_ns) {
  DeviceClock& clock = clock_of(slot);
  const std::optional<std::int64_t> device_ns =
      clock.note(slot, {.recorded_ns = event.recorded_ns, .not_ready_ns = stream.not_ready_ns, .ready_ns = ready_ns});
  event.state = device_ns ? State::kReady : State::kFailed;
  if (!device_ns) return;
  longest_lag_ns_ = std::max(longest_lag_ns_, ready_ns - event.recorded_ns);
  event.clock = &clock;
  event.device_ns = *device_ns;
  for (auto past = stream.past.rbegin(); past != stream.past.rend(); ++past) {
    if (past->first > event.issued_ns) continue;
    event.issued_device_ns = past->second;
    break;
  }
  stream.past.emplace_back(event.recorded_ns, *device_ns);
  if (stream.past.size() > kPastEvents) stream.past.pop_front();
  stream.forecast.note(event.step, event.sort, *device_ns);
  expect_next(stream, clock, ready_ns);
}

void EventResolver::expect_next(Stream& stream, DeviceClock& clock, std::int64_t now_ns) {
  if (stream.waiting.empty()) return;
  const auto next = events_.find(stream.waiting.front());
  if (next == events_.end()) return;
  const Event& event = next->second;
  const auto forecast = stream.forecast.next(event.step, event.sort, kLeastForecastNs, plan_.most_error_ns());
  if (!forecast || !plan_.may_expect(event.step, now_ns, forecast->error_ns)) return;
  // In the first step no span was converted yet, and a line that is wide is soon a better one.
  if (plan_.is_wide() && now_ns - forecast_line_ns_ >= kForecastLineEveryNs) {
    forecast_line_ns_ = now_ns;
    clock.line(forecast->device_ns, forecast->device_ns);
  }
  const std::optional<ClockLine>& line = clock.last_line();
  if (!line || line->bound_ns > static_cast<std::uint64_t>(PollPlan::kSureNs)) return;
  const std::int64_t expected_ns = line->to_host_ns(forecast->device_ns);
  if (expected_ns <= now_ns) return;
  plan_.expect(event.step, now_ns, expected_ns, forecast->error_ns);
  expected_stream_ = &stream;
  expected_ = next->first;
}

DeviceClock& EventResolver::clock_of(EventSlot slot) {
  const GpuContext context = timer_.context_of(slot);
  const auto found = std::ranges::find(clocks_, context, [](const auto& clock) { return clock->context(); });
  if (found != clocks_.end()) return **found;
  return *clocks_.emplace_back(std::make_unique<DeviceClock>(timer_, context));
}

bool EventResolver::is_settled(EventSlot slot) const {
  if (slot == kNoEvent) return true;
  const auto found = events_.find(slot);
  return found == events_.end() || found->second.state != State::kWaiting;
}

std::uint64_t EventResolver::writable_until(std::size_t thread, std::uint64_t end, bool give_up) {
  if (!is_active_) return end;
  if (!is_stopped_) scan(thread);
  std::deque<WaitingSpan>& waiting = cursors_[thread].waiting;
  while (!waiting.empty() && waiting.front().index < end) {
    const WaitingSpan& span = waiting.front();
    if (!give_up && !is_stopped_ && !(is_settled(span.start) && is_settled(span.end))) return span.index;
    waiting.pop_front();
  }
  return end;
}

void EventResolver::give_back(EventSlot slot) {
  if (slot == kNoEvent) return;
  DeviceClock* clock = nullptr;
  if (const auto found = events_.find(slot); found != events_.end()) {
    Event& event = found->second;
    clock = event.clock;
    if (--event.references == 0) {
      if (event.state == State::kWaiting) --waiting_count_;  // ask() finds it gone
      events_.erase(found);
    }
  }
  if (is_stopped_) return;
  if (clock != nullptr) {
    clock->release(slot);
  } else {
    timer_.release(slot);
  }
}

void EventResolver::release_events(const Span& span) {
  if (!has_events(span)) return;
  give_back(span.device_start);
  give_back(span.device_end);
}

}  // namespace smon_rt
