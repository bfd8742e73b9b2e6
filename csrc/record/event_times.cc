// The part of EventResolver that puts times in the place of events.

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "format/span_coding.h"
#include "format/trace_encoder.h"
#include "record/event_resolver.h"

namespace smon_rt {
namespace {

constexpr std::int64_t kShortestLineNs = 1'000'000;

}  // namespace

void EventResolver::resolve(std::span<Span> spans, std::string& out) {
  times_.clear();
  for (std::size_t i = 0; i < spans.size(); ++i) {
    Span& span = spans[i];
    if (!has_device_times(span.time_source)) continue;
    DeviceTimes times;
    times.span = i;
    const bool is_event = span.time_source != TimeSource::kNcclGlobaltimer;
    const bool is_known = is_event ? find_times(span, times) : find_globaltimer_times(span, times);
    if (is_event) {
      give_back(span.device_start);
      give_back(span.device_end);
    }
    if (is_known) {
      times_.push_back(times);
    } else {
      keep_host_times(span);
    }
  }
  // A process has one device, seldom more: one clock after the other.
  for (std::span<DeviceTimes> left = times_; !left.empty();) {
    const auto others = std::partition(left.begin(), left.end(), [first = left.front()](const DeviceTimes& times) {
      return times.has_same_clock(first);
    });
    const auto count = static_cast<std::size_t>(others - left.begin());
    convert(spans, left.first(count), out);
    left = left.subspan(count);
  }
}

bool EventResolver::find_times(const Span& span, DeviceTimes& times) {
  const auto end = events_.find(span.device_end);
  if (end == events_.end() || end->second.state != State::kReady) return false;
  times.clock = end->second.clock;
  times.end_ns = end->second.device_ns;
  if (span.time_source == TimeSource::kWaitEvent) {
    times.start_ns = end->second.issued_device_ns;
    return true;
  }
  const auto start = events_.find(span.device_start);
  if (start == events_.end() || start->second.state != State::kReady || start->second.clock != times.clock)
    return false;
  times.start_ns = start->second.device_ns;
  return true;
}

bool EventResolver::find_globaltimer_times(const Span& span, DeviceTimes& times) {
  if (span.device_start <= 0 || span.device_end < span.device_start) return false;
  times.device = device_of(span);
  times.globaltimer = &globaltimers_[times.device];
  times.start_ns = span.device_start;
  times.end_ns = span.device_end;
  return true;
}

std::optional<EventResolver::HostLine> EventResolver::line_of(const DeviceTimes& first, std::int64_t first_ns,
                                                              std::int64_t last_ns) {
  HostLine host;
  if (first.globaltimer != nullptr) {
    const std::optional<ClockLine> line = first.globaltimer->line(first_ns, last_ns);
    if (!line) return std::nullopt;
    host.line = *line;
    host.packet = to_clock_map(host.line, first_ns, last_ns);
    host.packet.device = first.device;
    for (const auto& clock : clocks_) {
      if (clock->device() == first.device) host.packet.gpu_uuid = clock->device_uuid();
    }
    host.packet.device_clock = "globaltimer";
    return host;
  }
  const std::optional<ClockLine> line = first.clock->line(first_ns, last_ns);
  if (!line) return std::nullopt;
  host.line = to_monotonic(*line, first_ns, last_ns);
  host.packet = first.clock->packet(host.line, first_ns, last_ns);
  return host;
}

ClockLine EventResolver::to_monotonic(const ClockLine& line, std::int64_t first_ns, std::int64_t last_ns) const {
  const std::int64_t end_ns = std::max(last_ns, first_ns + kShortestLineNs);
  const std::int64_t middle_ns = first_ns + (end_ns - first_ns) / 2;
  const auto at = [&](std::int64_t device_ns) { return to_monotonic_ns(line.to_host_ns(device_ns)); };
  ClockLine result = line;
  result.device_origin_ns = first_ns;
  result.host_origin_ns = at(first_ns);
  result.drift_ratio = static_cast<double>(at(end_ns) - result.host_origin_ns) / static_cast<double>(end_ns - first_ns);
  // CLOCK_MONOTONIC may have been slewed in between.
  result.bound_ns += 2 * static_cast<std::uint64_t>(std::abs(at(middle_ns) - result.to_host_ns(middle_ns)));
  return result;
}

void EventResolver::convert(std::span<Span> spans, std::span<DeviceTimes> times, std::string& out) {
  std::int64_t first_ns = INT64_MAX, last_ns = INT64_MIN;
  for (const DeviceTimes& of_span : times) {
    first_ns = std::min(first_ns, of_span.start_ns == kUnknown ? of_span.end_ns : of_span.start_ns);
    last_ns = std::max(last_ns, of_span.end_ns);
  }
  const std::optional<HostLine> host = line_of(times.front(), first_ns, last_ns);
  if (!host) {
    for (const DeviceTimes& of_span : times) keep_host_times(spans[of_span.span]);
    return;
  }
  append_clock_map(out, host->packet);
  plan_.set_bound(worst_bound_ns());
  for (const DeviceTimes& of_span : times) {
    Span& span = spans[of_span.span];
    span.device_end = host->line.to_host_ns(of_span.end_ns);
    const std::int64_t start_ns = of_span.start_ns == kUnknown ? span.start : host->line.to_host_ns(of_span.start_ns);
    span.device_start = start_ns;
    // Only the end was seen: it cannot have begun before it was issued, nor before what its stream waited for.
    if (span.time_source == TimeSource::kWaitEvent) span.device_start = std::max(start_ns, span.start);
    span.device_start = std::min(span.device_start, span.device_end);
  }
}

std::uint64_t EventResolver::worst_bound_ns() const {
  std::uint64_t worst_ns = 0;
  for (const auto& clock : clocks_) {
    worst_ns = std::max(worst_ns, clock->last_line() ? clock->last_line()->bound_ns : UINT64_MAX);
  }
  return worst_ns;
}

void EventResolver::keep_host_times(Span& span) {
  ++unresolved_spans_;
  span.time_source = span.time_source == TimeSource::kWaitEvent ? TimeSource::kWaitReturn : TimeSource::kHost;
  span.device_start = span.device_end = 0;
}

std::int32_t EventResolver::device_of_track(std::uint16_t track_id) {
  if (track_id > track_devices_.size()) {
    for (const InternedTrack& track : interner_.tracks_since(track_devices_.size())) {
      track_devices_.push_back(track.device);
    }
  }
  return track_id == kNoId || track_id > track_devices_.size() ? -1 : track_devices_[track_id - 1];
}

}  // namespace smon_rt
