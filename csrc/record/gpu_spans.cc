#include "record/gpu_spans.h"

#include <cstring>

#include "base/log.h"

namespace smon_rt {
namespace {

// Frameworks that are loaded after the context was made are looked for again every so many looks at the rings.
constexpr std::uint32_t kPassesBetweenLooks = 256;

}  // namespace

GpuSpans::GpuSpans(GpuTimer& timer, const ArenaHeader& header, std::span<ThreadRecord> threads, Interner& interner)
    : timer_(timer),
      header_(header),
      records_(threads),
      interner_(interner),
      threads_(std::make_unique<Thread[]>(threads.size())) {}

/// The stream that a thread launches into; null, and counted if there is a GPU, while there are no events for it.
GpuSpans::Stream* GpuSpans::find(std::size_t thread, std::uint32_t* number) noexcept {
  const GpuContext context = timer_.current_context();
  if (context == 0) return nullptr;
  const GpuStream stream = timer_.current_stream(context);
  const ThreadRecord& record = records_[thread];
  const auto is_it = [&](const Stream& one) {
    return one.context == context && one.stream == stream && one.thread_id == record.thread_id;
  };
  std::uint32_t& last = threads_[thread].last_stream;
  if (last == 0 || !is_it(streams_[last - 1])) last = ask(record, context, stream);
  *number = last;
  // acquire: pairs with the release in serve(): events and track are there.
  if (last != 0 && streams_[last - 1].state.load(std::memory_order_acquire) == State::kReady)
    return &streams_[last - 1];
  count_host_only();
  return nullptr;
}

/// The number of a stream of this thread, which nobody else writes; 0 where there is no room for another one.
std::uint32_t GpuSpans::ask(const ThreadRecord& record, GpuContext context, GpuStream stream) noexcept {
  std::uint32_t count = stream_count_.load(std::memory_order_acquire);
  for (std::uint32_t i = 0; i < count; ++i) {
    const Stream& one = streams_[i];
    // acquire: pairs with the release below, of another thread.
    if (one.state.load(std::memory_order_acquire) == State::kFree) continue;
    if (one.context == context && one.stream == stream && one.thread_id == record.thread_id) return i + 1;
  }
  do {
    if (count == kMaxStreams) return 0;
  } while (!stream_count_.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel));
  Stream& made = streams_[count];
  made.thread_id = record.thread_id;
  std::memcpy(made.thread_name, record.name, sizeof(made.thread_name));
  made.context = context;
  made.stream = stream;
  made.state.store(State::kAsked, std::memory_order_release);  // pairs with the acquires above and in serve()
  return count + 1;
}

void GpuSpans::serve() {
  const std::uint32_t count = stream_count_.load(std::memory_order_acquire);
  for (; served_count_ < count; ++served_count_) {
    Stream& stream = streams_[served_count_];
    if (stream.state.load(std::memory_order_acquire) != State::kAsked) break;  // being written: next time
    const Result<void> adopted = timer_.adopt(stream.context);
    if (adopted) {
      if (device_uuid_.empty()) device_uuid_ = timer_.device_uuid(stream.context);
      stream.track_id =
          interner_.track(stream.thread_id, stream.thread_name, timer_.device_of(stream.context), stream.stream);
    } else if (!has_said_refused_) {
      has_said_refused_ = true;
      log(LogLevel::kInfo, adopted.error().message + "; spans have host times only");
    }
    stream.state.store(adopted ? State::kReady : State::kRefused, std::memory_order_release);
  }
  if (count != 0 && ++passes_ % kPassesBetweenLooks == 0) (void)timer_.adopt(streams_[0].context);
}

GpuSpans::Boundary GpuSpans::record(const Stream& stream, std::uint32_t number) noexcept {
  Boundary boundary;
  boundary.event = timer_.record(stream.stream);
  if (boundary.event != kNoEvent) {
    boundary.stream = number;
    boundary.track_id = stream.track_id;
  } else if (timer_.capture_state(stream.stream) != CaptureState::kNotCapturing) {
    boundary.flags = span_flag::kInCapture;
  } else {
    count_host_only();
  }
  return boundary;
}

bool GpuSpans::is_near(const Thread& thread, std::uint32_t stream, Position position,
                       std::int64_t now_ticks) const noexcept {
  if (thread.end_event == kNoEvent || thread.end_stream != stream || thread.end_position != position) return false;
  const double ns_per_tick = header_.clock.ns_per_tick.load(std::memory_order_relaxed);
  return static_cast<double>(now_ticks - thread.end_ticks) * ns_per_tick <= static_cast<double>(kShareWithinNs);
}

GpuSpans::Boundary GpuSpans::begin(std::size_t thread, Position position, std::int64_t now_ticks) noexcept {
  std::uint32_t number = 0;
  const Stream* stream = find(thread, &number);
  if (stream == nullptr) return {};
  Thread& own = threads_[thread];
  const bool is_shared = is_near(own, number, position, now_ticks) && timer_.retain(own.end_event);
  const EventSlot shared = own.end_event;
  own.end_event = kNoEvent;
  if (is_shared) return {shared, number, stream->track_id, 0};
  return record(*stream, number);
}

GpuSpans::Boundary GpuSpans::wait(std::size_t thread) noexcept {
  std::uint32_t number = 0;
  const Stream* stream = find(thread, &number);
  return stream == nullptr ? Boundary{} : record(*stream, number);
}

GpuSpans::Boundary GpuSpans::end(std::uint32_t stream) noexcept {
  const Stream& began_in = streams_[stream - 1];
  // On another thread, of autograd's or the user's, it may be another one.
  if (began_in.context == timer_.current_context()) return record(began_in, stream);
  count_host_only();
  return {};
}

void GpuSpans::remember(std::size_t thread, const Boundary& boundary, Position position,
                        std::int64_t now_ticks) noexcept {
  Thread& own = threads_[thread];
  own.end_event = boundary.event;
  own.end_stream = boundary.stream;
  own.end_ticks = now_ticks;
  own.end_position = position;
}

}  // namespace smon_rt
