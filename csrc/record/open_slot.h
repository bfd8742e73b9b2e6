#pragma once

#include <atomic>
#include <cstdint>

#include "format/in_flight.h"
#include "record/span_words.h"

// How the recorder writes the span of a slot, and how other threads of the process read it: word by word with atomics
// between the two halves of a seqlock, so that a torn copy is seen and thrown away and nothing is a data race. The
// order is on the words themselves, not in fences, which ThreadSanitizer does not know; on x86-64 all are plain moves.

namespace smon_rt {

/// Replaces the span of a slot. One writer at a time.
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
