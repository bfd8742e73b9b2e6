#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "format/span.h"

// A span as eight words of 64 bits. The hot path puts spans together in registers and moves them word by word: built
// field by field, a span would be read back in wider pieces than it was written in, which stalls the processor (store
// forwarding fails) for longer than everything else that begin() does.

namespace smon_rt {

using SpanWords = std::array<std::uint64_t, sizeof(Span) / sizeof(std::uint64_t)>;

/// Where fields lie; span_words_test.cc holds these against Span itself.
namespace span_word {
inline constexpr std::size_t kStart = offsetof(Span, start) / 8;
inline constexpr std::size_t kEnd = offsetof(Span, end) / 8;
inline constexpr std::size_t kDeviceStart = offsetof(Span, device_start) / 8;
inline constexpr std::size_t kDeviceEnd = offsetof(Span, device_end) / 8;
inline constexpr std::size_t kStepKindFlags = offsetof(Span, step) / 8;
inline constexpr std::size_t kIndices = offsetof(Span, microbatch) / 8;
inline constexpr std::size_t kNamePayload = offsetof(Span, name_or_comm_id) / 8;
inline constexpr std::size_t kSequencePeer = offsetof(Span, comm_seq) / 8;
inline constexpr int kFlagsShift = offsetof(Span, flags) % 8 * 8;
inline constexpr int kKindShift = offsetof(Span, kind) % 8 * 8;
inline constexpr int kTimeSourceShift = offsetof(Span, time_source) % 8 * 8;
inline constexpr int kTrackShift = offsetof(Span, track_id) % 8 * 8;
}  // namespace span_word

static_assert(std::endian::native == std::endian::little, "words are put together by shifts; a file is little-endian");
static_assert(offsetof(Span, step) % 8 == 0 && offsetof(Span, microbatch) % 8 == 0);
static_assert(offsetof(Span, name_or_comm_id) % 8 == 0 && offsetof(Span, comm_seq) % 8 == 0);

/// step, kind and flags; the time source is host.
constexpr std::uint64_t pack_step(std::uint32_t step, Kind kind, std::uint16_t flags) {
  return std::uint64_t{step} | static_cast<std::uint64_t>(kind) << span_word::kKindShift |
         std::uint64_t{flags} << span_word::kFlagsShift;
}

constexpr std::uint64_t pack_time_source(TimeSource source) {
  return static_cast<std::uint64_t>(source) << span_word::kTimeSourceShift;
}

constexpr std::uint64_t pack_indices(std::int16_t microbatch, std::int16_t chunk, std::uint16_t op_index,
                                     std::uint16_t track_id) {
  return std::uint64_t{static_cast<std::uint16_t>(microbatch)} |
         std::uint64_t{static_cast<std::uint16_t>(chunk)} << 16 | std::uint64_t{op_index} << 32 |
         std::uint64_t{track_id} << 48;
}

/// payload_bytes below 2^48.
constexpr std::uint64_t pack_name_payload(std::uint16_t name_or_comm_id, std::uint64_t payload_bytes) {
  return std::uint64_t{name_or_comm_id} | payload_bytes >> 32 << 16 | payload_bytes << 32;
}

constexpr std::uint64_t pack_sequence_peer(std::uint32_t comm_seq, std::int32_t peer) {
  return std::uint64_t{comm_seq} | std::uint64_t{static_cast<std::uint32_t>(peer)} << 32;
}

inline constexpr std::uint64_t kMaxPayloadBytes = (std::uint64_t{1} << 48) - 1;

constexpr Kind kind_of(const SpanWords& words) {
  return static_cast<Kind>(words[span_word::kStepKindFlags] >> span_word::kKindShift & 0xff);
}

/// Copies word by word with atomics of this order. Written out, since a loop over them is neither unrolled nor merged
/// into wider moves, and the words then stay in registers.
template <std::memory_order kOrder>
inline void store_words(Span& target, const SpanWords& words) noexcept {
  auto* first = reinterpret_cast<std::uint64_t*>(&target);
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (std::atomic_ref<std::uint64_t>(first[kIndex]).store(words[kIndex], kOrder), ...);
  }(std::make_index_sequence<std::tuple_size_v<SpanWords>>{});
}

template <std::memory_order kOrder>
inline SpanWords load_words(const Span& source) noexcept {
  auto* first = reinterpret_cast<std::uint64_t*>(const_cast<Span*>(&source));
  return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return SpanWords{std::atomic_ref<std::uint64_t>(first[kIndex]).load(kOrder)...};
  }(std::make_index_sequence<std::tuple_size_v<SpanWords>>{});
}

inline SpanWords to_words(const Span& span) {
  return std::bit_cast<SpanWords>(span);
}

inline Span to_span(const SpanWords& words) {
  return std::bit_cast<Span>(words);
}

/// What an open span has. Its other words are 0 as long as it is open, but for one that began on a GPU: there the words
/// of the device's times are the event of its begin, and the number of its stream.
struct OpenWords {
  std::uint64_t start = 0;
  std::uint64_t step_kind_flags = 0;
  std::uint64_t indices = 0;
  std::uint64_t name_payload = 0;
  std::uint64_t sequence_peer = 0;
};

template <std::memory_order kOrder>
inline void store_word(Span& target, std::size_t at, std::uint64_t word) noexcept {
  std::atomic_ref<std::uint64_t>(reinterpret_cast<std::uint64_t*>(&target)[at]).store(word, kOrder);
}

template <std::memory_order kOrder>
inline std::uint64_t load_word(const Span& source, std::size_t at) noexcept {
  auto* first = reinterpret_cast<std::uint64_t*>(const_cast<Span*>(&source));
  return std::atomic_ref<std::uint64_t>(first[at]).load(kOrder);
}

}  // namespace smon_rt
