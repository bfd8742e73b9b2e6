// The part of the recorder that a span takes which has times of a GPU.
//
// The host's ticks are always read before the event is recorded: the event is not earlier, which is what the clock map
// starts from. A boundary that two spans share is the exception, by GpuSpans::kShareWithinNs.

#include <tuple>  // of which span_words.h needs some, with GCC 11
#include <utility>

#include "record/open_slot.h"
#include "record/recorder.h"

namespace smon_rt {

Token Recorder::begin_on_gpu(ThreadSlots& thread, const OpenWords& words) noexcept {
  const GpuSpans::Position before{thread.write_index, thread.free_count};
  const std::uint16_t index = thread.take_slot();
  OpenSlot& slot = thread.slots[index];
  const Token token = thread.token_base | Token{index} << 32 | open_slot(slot, words, true);
  const GpuSpans::Boundary begun = gpu_spans_->begin(thread.index, before, static_cast<std::int64_t>(words.start));
  const auto add = [&](std::size_t at, std::uint64_t bits) {
    store_word<std::memory_order_release>(slot.span, at, load_word<std::memory_order_relaxed>(slot.span, at) | bits);
  };
  if (begun.flags != 0) add(span_word::kStepKindFlags, std::uint64_t{begun.flags} << span_word::kFlagsShift);
  if (begun.event == kNoEvent) return token;
  if (load_word<std::memory_order_relaxed>(slot.span, span_word::kIndices) >> span_word::kTrackShift == kNoId) {
    add(span_word::kIndices, std::uint64_t{begun.track_id} << span_word::kTrackShift);
  }
  add(span_word::kDeviceEnd, begun.stream);
  add(span_word::kDeviceStart, static_cast<std::uint64_t>(begun.event));
  return token | kOnGpu;
}

GpuSpans::Boundary Recorder::add_events(OpenSlot& slot, ThreadSlots* thread, TimeSource source, bool is_late,
                                        SpanWords& words) noexcept {
  const auto begun = static_cast<EventSlot>(load_word<std::memory_order_acquire>(slot.span, span_word::kDeviceStart));
  const std::uint64_t open_end = load_word<std::memory_order_acquire>(slot.span, span_word::kDeviceEnd);
  EventSlot marked = marked_event(open_end);
  // The next span of this slot may be the host's alone.
  store_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceStart, 0);
  store_word<std::memory_order_relaxed>(slot.span, span_word::kDeviceEnd, 0);
  const bool has_event = begun != kNoEvent || source == TimeSource::kWaitEvent ||
                         (source == TimeSource::kWaitReturn && has_stream_waits(words));
  if (source == TimeSource::kWaitEvent) source = TimeSource::kWaitReturn;
  GpuSpans::Boundary ended;
  if (gpu_spans_ == nullptr || !has_event) {
    // Nothing on a GPU: as without one.
  } else if (is_late) {
    ended.event = std::exchange(marked, kNoEvent);
    // An event now would count what the stream was given since.
    if (ended.event == kNoEvent) gpu_spans_->count_host_only();
  } else if (begun != kNoEvent) {
    ended = gpu_spans_->end(stream_of(open_end));
  } else if (thread != nullptr) {
    ended = gpu_spans_->wait(thread->index);
  }
  if (gpu_spans_ != nullptr && marked != kNoEvent) gpu_spans_->release(marked);
  if (ended.event == kNoEvent) {
    if (begun != kNoEvent && gpu_spans_ != nullptr) gpu_spans_->release(begun);
  } else {
    source = begun != kNoEvent ? TimeSource::kGpuEvent : TimeSource::kWaitEvent;
    words[span_word::kDeviceStart] = static_cast<std::uint64_t>(begun);
    words[span_word::kDeviceEnd] = static_cast<std::uint64_t>(ended.event);
    if (words[span_word::kIndices] >> span_word::kTrackShift == kNoId) {
      words[span_word::kIndices] |= std::uint64_t{ended.track_id} << span_word::kTrackShift;
    }
  }
  words[span_word::kStepKindFlags] |= pack_time_source(source) | std::uint64_t{ended.flags} << span_word::kFlagsShift;
  if (is_late) ended.event = kNoEvent;  // no boundary of what begins now
  return ended;
}

std::int64_t Recorder::mark_end(Token token) noexcept {
  const std::int64_t now_ticks = clock_.ticks();
  if ((token & kOnGpu) == 0 || gpu_spans_ == nullptr || !is_recording()) return now_ticks;
  ThreadSlots* owner;
  OpenSlot* slot = slot_of(token, &owner);
  // acquire: pairs with the release that opened the slot.
  if (slot == nullptr || slot->state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(token)) {
    return now_ticks;
  }
  const std::uint64_t word = load_word<std::memory_order_acquire>(slot->span, span_word::kDeviceEnd);
  if (stream_of(word) == 0) return now_ticks;
  const EventSlot event = gpu_spans_->end(stream_of(word)).event;
  store_word<std::memory_order_release>(slot->span, span_word::kDeviceEnd, open_end_word(stream_of(word), event));
  gpu_spans_->release(marked_event(word));
  return now_ticks;
}

void Recorder::set_stream_waits(std::uint16_t comm_id) noexcept {
  if (comm_id == kNoId || comm_id > comm_records_.size()) return;
  comm_records_[comm_id - 1].has_stream_waits.store(1, std::memory_order_relaxed);
}

bool Recorder::has_stream_waits(const SpanWords& words) const noexcept {
  if ((kGpuWaitKinds >> static_cast<unsigned>(kind_of(words)) & 1) == 0) return false;
  const auto comm_id = static_cast<std::uint16_t>(words[span_word::kNamePayload]);
  if (comm_id == kNoId || comm_id > comm_records_.size()) return false;
  return comm_records_[comm_id - 1].has_stream_waits.load(std::memory_order_relaxed) != 0;
}

void Recorder::release_events(const SpanWords& words) noexcept {
  if (gpu_spans_ == nullptr) return;
  for (const std::size_t at : {span_word::kDeviceStart, span_word::kDeviceEnd}) {
    if (words[at] != 0) gpu_spans_->release(static_cast<EventSlot>(words[at]));
  }
}

}  // namespace smon_rt
