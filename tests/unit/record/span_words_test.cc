#include "record/span_words.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

#include "record/open_slot.h"

namespace smon_rt {
namespace {

TEST(SpanWords, PackedWordsAreTheSpan) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 1000; ++i) {
    Span span;
    span.start = static_cast<std::int64_t>(random());
    span.end = static_cast<std::int64_t>(random());
    span.step = static_cast<std::uint32_t>(random());
    span.kind = static_cast<Kind>(random() % kKindCount);
    span.flags = static_cast<std::uint16_t>(random());
    span.microbatch = static_cast<std::int16_t>(random());
    span.chunk = static_cast<std::int16_t>(random());
    span.op_index = static_cast<std::uint16_t>(random());
    span.track_id = static_cast<std::uint16_t>(random());
    span.name_or_comm_id = static_cast<std::uint16_t>(random());
    span.comm_seq = static_cast<std::uint32_t>(random());
    span.peer = static_cast<std::int32_t>(random());
    const std::uint64_t payload = random() & kMaxPayloadBytes;
    span.set_payload_bytes(payload);

    SpanWords words{};
    words[span_word::kStart] = static_cast<std::uint64_t>(span.start);
    words[span_word::kEnd] = static_cast<std::uint64_t>(span.end);
    words[span_word::kStepKindFlags] = pack_step(span.step, span.kind, span.flags);
    words[span_word::kIndices] = pack_indices(span.microbatch, span.chunk, span.op_index, span.track_id);
    words[span_word::kNamePayload] = pack_name_payload(span.name_or_comm_id, payload);
    words[span_word::kSequencePeer] = pack_sequence_peer(span.comm_seq, span.peer);
    ASSERT_EQ(words, to_words(span));
    ASSERT_EQ(kind_of(words), span.kind);
    ASSERT_EQ(to_span(words).payload_bytes(), payload);
  }
}

TEST(SpanWords, ASlotIsReadOnlyWhileItIsOpen) {
  OpenSlot slot;
  Span span;
  span.microbatch = 5;
  write_slot_span(slot, to_words(span));
  Span seen;
  EXPECT_FALSE(read_open_slot(slot, &seen));
  slot.state = 1 << 2 | OpenSlot::kOpen;
  ASSERT_TRUE(read_open_slot(slot, &seen));
  EXPECT_EQ(seen.microbatch, 5);
  slot.sequence += 1;
  EXPECT_FALSE(read_open_slot(slot, &seen)) << "being written";
  slot.sequence += 1;
  slot.state = 1 << 2 | OpenSlot::kEnding;
  EXPECT_FALSE(read_open_slot(slot, &seen));
}

}  // namespace
}  // namespace smon_rt
