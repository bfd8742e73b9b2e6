// What the drain thread, and others, read of an arena for files.

#include <algorithm>

#include "record/drain.h"
#include "record/open_slot.h"

namespace smon_rt {

TraceLosses read_losses(const ArenaHeader& header, std::string_view sink_error) {
  TraceLosses result;
  const ArenaLosses& losses = header.losses;
  for (std::uint32_t kind = 0; kind < kKindCount; ++kind) {
    const std::uint64_t count = losses.dropped_by_kind[kind].load(std::memory_order_relaxed);
    if (count != 0) result.dropped_by_kind[kind] = count;
  }
  result.foreign_tokens = losses.foreign_tokens.load(std::memory_order_relaxed);
  result.stale_tokens = losses.stale_tokens.load(std::memory_order_relaxed);
  result.threads_without_ring = losses.threads_without_ring.load(std::memory_order_relaxed);
  result.unwritten_spans = losses.unwritten_spans.load(std::memory_order_relaxed);
  result.late_requests = losses.late_requests.load(std::memory_order_relaxed);
  result.uncounted_sequences = losses.uncounted_sequences.load(std::memory_order_relaxed);
  result.reclaimed_spans = header.more_losses.reclaimed_spans.load(std::memory_order_relaxed);
  result.saturated_steps = header.more_losses.saturated_steps.load(std::memory_order_relaxed);
  result.misused_calls = header.more_losses.misused_calls.load(std::memory_order_relaxed);
  result.host_only_spans = header.host_only_spans.load(std::memory_order_relaxed);
  result.overwritten_comm_ops = header.overwritten_comm_ops.load(std::memory_order_relaxed);
  result.sink_error = sink_error;
  return result;
}

std::vector<Span> read_open_spans(Arena& arena, const ClockConverter& clock, std::int64_t now_ns,
                                  UnsampledSpans unsampled) {
  std::vector<Span> spans;
  for (std::size_t i = 0; i < arena.threads().size(); ++i) {
    if (arena.threads()[i].state.load(std::memory_order_acquire) == ThreadState::kFree) continue;
    for (const OpenSlot& slot : arena.slots(static_cast<std::uint32_t>(i))) {
      Span span;
      if (!read_open_slot(slot, &span)) continue;
      if (unsampled == UnsampledSpans::kLeaveOut && slot.is_recorded.load(std::memory_order_relaxed) == 0) continue;
      // Begun without a look at the clock.
      if (span.start == 0) span.start = arena.header().step_start_ticks.load(std::memory_order_relaxed);
      span.start = std::min(clock.to_monotonic_ns(span.start), now_ns);
      span.end = now_ns;
      span.flags |= span_flag::kAborted;
      // The events of what did not end are of no use to anybody.
      span.time_source = TimeSource::kHost;
      span.device_start = span.device_end = 0;
      spans.push_back(span);
    }
  }
  return spans;
}

}  // namespace smon_rt
