#pragma once

#include <atomic>
#include <cstdint>

#include "format/in_flight.h"
#include "record/span_words.h"

// How the recorder writes the span of a slot, and how other threads of the process read it: word by word with atomics
// between the two halves of a seqlock, so that a torn copy is seen and thrown away and nothing is a data race. The
// order is on the words themselves, not in fences, which ThreadSanitizer does not know; on x86-64 all are plain moves.

namespace smon_rt {

/// Opens a free slot for a span; its new state. By the thread that the slot belongs to.
///
/// No seqlock: the state is one. It is free until the words are there and has a new generation after, so whoever found
/// the span of before, or half of this one, finds another state when looking again.
inline std::uint32_t open_slot(OpenSlot& slot, const OpenWords& words, bool is_recorded) noexcept {
  const std::uint32_t state = slot.state.load(std::memory_order_relaxed) + OpenSlot::kGeneration + OpenSlot::kOpen;
  slot.is_recorded.store(is_recorded ? 1 : 0, std::memory_order_relaxed);
  // release: who sees a new word sees that the slot was freed; pairs with the acquire loads in load_slot_span().
  store_word<std::memory_order_release>(slot.span, span_word::kStart, words.start);
  store_word<std::memory_order_release>(slot.span, span_word::kStepKindFlags, words.step_kind_flags);
  store_word<std::memory_order_release>(slot.span, span_word::kIndices, words.indices);
  store_word<std::memory_order_release>(slot.span, span_word::kNamePayload, words.name_payload);
  store_word<std::memory_order_release>(slot.span, span_word::kSequencePeer, words.sequence_peer);
  // release: pairs with the acquire of whoever ends or reads the span.
  slot.state.store(state, std::memory_order_release);
  return state;
}

/// The kind of an open span, as a number below 32: kinds are checked before a span opens.
inline unsigned open_kind(const OpenSlot& slot) noexcept {
  const std::uint64_t word = load_word<std::memory_order_relaxed>(slot.span, span_word::kStepKindFlags);
  return static_cast<unsigned>(word >> span_word::kKindShift & 31);
}

/// The span of a slot as it goes into a ring, by who has won its end.
inline SpanWords ended_span(const OpenSlot& slot, std::int64_t end_ticks, std::uint16_t more_flags) noexcept {
  const auto load = [&](std::size_t at) { return load_word<std::memory_order_acquire>(slot.span, at); };
  SpanWords words{};
  words[span_word::kStart] = load(span_word::kStart);
  words[span_word::kEnd] = static_cast<std::uint64_t>(end_ticks);
  words[span_word::kStepKindFlags] = load(span_word::kStepKindFlags) | std::uint64_t{more_flags}
                                                                           << span_word::kFlagsShift;
  words[span_word::kIndices] = load(span_word::kIndices);
  words[span_word::kNamePayload] = load(span_word::kNamePayload);
  words[span_word::kSequencePeer] = load(span_word::kSequencePeer);
  return words;
}

/// Replaces the span of an open slot. One writer at a time.
inline void write_slot_span(OpenSlot& slot, const SpanWords& words) noexcept {
  const auto sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  // release: who sees a new word sees the odd number; pairs with the acquire loads in load_slot_span().
  store_words<std::memory_order_release>(slot.span, words);
  slot.sequence.store(sequence + 2, std::memory_order_release);  // pairs with the load in read_open_slot()
}

/// The span of a slot, as words. Whole only for who has won its end, or between the checks of read_open_slot().
inline SpanWords load_slot_span(const OpenSlot& slot) noexcept {
  return load_words<std::memory_order_acquire>(slot.span);
}

/// A consistent copy of an open span, by any thread of the process. False: not open, or being written just now.
inline bool read_open_slot(const OpenSlot& slot, Span* span) noexcept {
  const auto state = slot.state.load(std::memory_order_acquire);  // pairs with the release that opens the slot
  if ((state & OpenSlot::kStateMask) != OpenSlot::kOpen) return false;
  const auto sequence = slot.sequence.load(std::memory_order_acquire);  // pairs with the last store of the writer
  *span = to_span(load_slot_span(slot));
  // Relaxed: the acquire loads of the words keep these below them.
  return sequence % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == sequence &&
         slot.state.load(std::memory_order_relaxed) == state;
}

}  // namespace smon_rt
