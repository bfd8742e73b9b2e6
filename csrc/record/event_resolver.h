#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/clock_converter.h"
#include "format/span.h"
#include "record/arena.h"
#include "record/device_clock.h"
#include "record/gpu_timer.h"
#include "record/interner.h"
#include "record/poll_plan.h"

namespace smon_rt {

/// Finds out when the events of spans happened: sees spans in their rings as soon as they are there, asks which events
/// are ready, oldest of each stream first, and puts times of the host in the place of events before spans are written.
/// A span whose events are not ready stays in its ring, and those behind it with it.
///
/// Inside, host time is the processor's counter at a fixed rate ("steady" ns), which NTP does not slew: two crystals
/// keep to a line for longer than one does with CLOCK_MONOTONIC.
///
/// Threading: the drain thread alone. Cost: nothing until activate(); then what PollOptions says.
/// When full: spans that wait in a ring which is half full, or at the end, are written with host times only and
/// counted.
class EventResolver {
 public:
  /// All outlive it.
  EventResolver(Arena& arena, const Interner& interner, GpuTimer& timer, const Clock& clock,
                const ClockConverter& converter, PollOptions options = {});

  /// From now on there are spans with events. False: the clocks were not read for long enough yet.
  bool activate();
  bool is_active() const { return is_active_; }
  /// For exit handlers' sake the timer is not called any more; what is not known by now stays unknown.
  void stop_asking() { is_stopped_ = true; }

  /// A look, if one is due.
  void poll();
  /// One now. Whether anything is still waited for.
  bool look();
  /// Until the next one is due; INT64_MAX while nothing needs it.
  std::int64_t next_poll_in_ns() const;

  /// Up to which index, `end` at most, the spans of a thread's ring may be written. `give_up`: all of them.
  std::uint64_t writable_until(std::size_t thread, std::uint64_t end, bool give_up);

  /// Events, and times of the global timer, become nanoseconds of the host; events are given back. What the times are
  /// worth goes into `out`. Host times are in nanoseconds already.
  void resolve(std::span<Span> spans, std::string& out);

  /// Gives back the events of a span that does without them.
  void release_events(const Span& span);
  /// What the host saw of a moment of a device's global timer, by CLOCK_MONOTONIC.
  void add_globaltimer(std::int32_t device, const ClockBracket& bracket) { globaltimers_[device].add(bracket); }
  /// Of the span's track; 0, the only one of most processes, where it does not say.
  std::int32_t device_of(const Span& span) { return std::max(0, device_of_track(span.track_id)); }

  /// How long it took at most, since the last call, from the recording of an event until it was known to be ready.
  std::int64_t take_longest_lag_ns() { return std::exchange(longest_lag_ns_, 0); }
  std::uint64_t query_count() const { return plan_.query_count(); }
  /// Spans that were written with host times only.
  std::uint64_t unresolved_spans() const { return unresolved_spans_; }

 private:
  enum class State : std::uint8_t { kWaiting, kReady, kFailed };
  struct Event {
    State state = State::kWaiting;
    std::uint32_t references = 0;  // spans in rings
    std::uint32_t step = 0;
    std::uint8_t sort = 0;         // for the forecast
    std::int64_t recorded_ns = 0;  // steady, never later than it was recorded
    std::int64_t issued_ns = 0;    // steady, of the span that it ends
    DeviceClock* clock = nullptr;
    std::int64_t device_ns = 0;
    std::int64_t issued_device_ns = kUnknown;  // of the last event on the stream before the span was issued
  };
  static constexpr std::int64_t kUnknown = INT64_MIN;

  struct Stream {
    std::deque<EventSlot> waiting;  // by recorded_ns, as the stream does them
    std::int64_t not_ready_ns = ClockBracket::kNever;
    CompletionForecast forecast;
    std::deque<std::pair<std::int64_t, std::int64_t>> past;  // recorded_ns and device_ns
  };
  struct WaitingSpan {
    std::uint64_t index;
    EventSlot start, end;
  };
  struct Cursor {
    std::uint32_t ring_id = 0;
    std::uint64_t seen = 0;  // spans before it are known
    std::deque<WaitingSpan> waiting;
  };
  /// Of a span, in nanoseconds of a device's clock.
  struct DeviceTimes {
    std::size_t span = 0;
    DeviceClock* clock = nullptr;     // of events
    ClockMap* globaltimer = nullptr;  // or of the global timer
    std::int32_t device = 0;
    std::int64_t start_ns = kUnknown, end_ns = 0;

    bool has_same_clock(const DeviceTimes& other) const {
      return clock == other.clock && globaltimer == other.globaltimer;
    }
  };
  struct HostLine {
    ClockLine line;
    TraceClockMap packet;
  };

  std::int64_t steady_ns(std::int64_t ticks) const;
  std::int64_t to_monotonic_ns(std::int64_t steady_ns) const;
  ClockLine to_monotonic(const ClockLine& line, std::int64_t first_ns, std::int64_t last_ns) const;

  void scan(std::size_t thread);
  void add_span(std::size_t thread, std::uint64_t index, const Span& span);
  void add_event(EventSlot slot, const Span& span, std::int64_t recorded_ns, Stream& stream);
  void ask(Stream& stream);
  void take_ready(EventSlot slot, Event& event, Stream& stream, std::int64_t ready_ns);
  void expect_next(Stream& stream, DeviceClock& clock, std::int64_t now_ns);
  DeviceClock& clock_of(EventSlot slot);
  bool is_settled(EventSlot slot) const;
  void give_back(EventSlot slot);

  bool find_times(const Span& span, DeviceTimes& times);
  bool find_globaltimer_times(const Span& span, DeviceTimes& times);
  std::optional<HostLine> line_of(const DeviceTimes& first, std::int64_t first_ns, std::int64_t last_ns);
  void convert(std::span<Span> spans, std::span<DeviceTimes> times, std::string& out);
  std::uint64_t worst_bound_ns() const;
  void keep_host_times(Span& span);
  std::int32_t device_of_track(std::uint16_t track_id);

  Arena& arena_;
  const Interner& interner_;
  GpuTimer& timer_;
  const Clock& clock_;
  const ClockConverter& converter_;
  PollPlan plan_;
  bool is_active_ = false;
  bool is_stopped_ = false;
  std::int64_t origin_ticks_ = 0;
  std::int64_t origin_ns_ = 0;
  double ns_per_tick_ = 1;
  std::vector<Cursor> cursors_;  // one a thread record
  std::unordered_map<EventSlot, Event> events_;
  std::map<std::uint32_t, Stream> streams_;
  std::vector<std::unique_ptr<DeviceClock>> clocks_;
  std::map<std::int32_t, ClockMap> globaltimers_;  // by device
  std::vector<std::int32_t> track_devices_;        // by id - 1
  std::size_t waiting_count_ = 0;                  // events
  std::int64_t last_found_ns_ = 0;
  std::int64_t longest_lag_ns_ = 0;
  Stream* expected_stream_ = nullptr;
  EventSlot expected_ = kNoEvent;
  std::int64_t forecast_line_ns_ = 0;
  std::vector<DeviceTimes> times_;
  std::uint64_t unresolved_spans_ = 0;
};

}  // namespace smon_rt
