#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "format/in_flight.h"

// How the recorder writes the span of a slot, and how other threads of the process read it: word by word with atomics
// between the two halves of a seqlock, so that a torn copy is seen and thrown away and nothing is a data race. The
// order is on the words themselves, not in fences, which ThreadSanitizer does not know; on x86-64 all are plain moves.

namespace smon_rt {

namespace detail {
using SpanWords = std::array<std::uint64_t, sizeof(Span) / sizeof(std::uint64_t)>;
}  // namespace detail

/// Replaces the span of a slot. One writer at a time.
inline void write_slot_span(OpenSlot& slot, const Span& span) noexcept {
  const auto sequence = slot.sequence.load(std::memory_order_relaxed);
  slot.sequence.store(sequence + 1, std::memory_order_relaxed);
  detail::SpanWords words;
  std::memcpy(words.data(), &span, sizeof(span));
  auto* target = reinterpret_cast<std::uint64_t*>(&slot.span);
  for (std::size_t i = 0; i < words.size(); ++i) {
    // release: who sees a new word sees the odd number; pairs with the acquire loads in read_open_slot().
    std::atomic_ref<std::uint64_t>(target[i]).store(words[i], std::memory_order_release);
  }
  slot.sequence.store(sequence + 2, std::memory_order_release);  // pairs with the first load in read_open_slot()
}

/// The span of a slot.
inline Span load_slot_span(const OpenSlot& slot) noexcept {
  detail::SpanWords words;
  auto* source = reinterpret_cast<std::uint64_t*>(const_cast<Span*>(&slot.span));
  for (std::size_t i = 0; i < words.size(); ++i) {
    words[i] = std::atomic_ref<std::uint64_t>(source[i]).load(std::memory_order_acquire);
  }
  Span span;
  std::memcpy(static_cast<void*>(&span), words.data(), sizeof(span));
  return span;
}

/// A consistent copy of an open span, by any thread of the process. False: not open, or being written just now.
inline bool read_open_slot(const OpenSlot& slot, Span* span) noexcept {
  const auto state = slot.state.load(std::memory_order_acquire);  // pairs with the release that opens the slot
  if ((state & OpenSlot::kStateMask) != OpenSlot::kOpen) return false;
  const auto sequence = slot.sequence.load(std::memory_order_acquire);  // pairs with the last store of the writer
  *span = load_slot_span(slot);
  // Relaxed: the acquire loads of the words keep these below them.
  return sequence % 2 == 0 && slot.sequence.load(std::memory_order_relaxed) == sequence &&
         slot.state.load(std::memory_order_relaxed) == state;
}

}  // namespace smon_rt
