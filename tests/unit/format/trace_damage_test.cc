// Files that were cut, overwritten, or put together: what is intact is read, what is not is said by its offset.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "collected_trace.h"
#include "format/trace_encoder.h"
#include "format/trace_reader.h"
#include "simulated_steps.h"
#include "trace_samples.h"

namespace smon_rt {
namespace {

using test::collect;
using test::CollectedTrace;

/// A file in pieces: one packet each.
std::vector<std::string> sample_packets() {
  const std::vector<Span> spans = test::SimulatedSteps(true).make(1);
  std::vector<std::string> packets(7);
  append_identity(packets[0], test::sample_identity());
  append_names(packets[1], test::sample_names());
  append_spans(packets[2], 1, 0, std::span(spans).first(40));
  append_step_times(packets[3], test::sample_step_times());
  append_spans(packets[4], 1, 40, std::span(spans).subspan(40, 30));
  append_losses(packets[5], {});
  append_end(packets[6], "stop");
  return packets;
}

std::string joined(const std::vector<std::string>& packets) {
  std::string bytes;
  for (const std::string& packet : packets) bytes += packet;
  return bytes;
}

/// What is read when packet `missing` is not there.
std::vector<CollectedTrace> traces_without_each(const std::vector<std::string>& packets) {
  std::vector<CollectedTrace> traces;
  for (std::size_t missing = 0; missing < packets.size(); ++missing) {
    std::vector<std::string> others = packets;
    others[missing].clear();
    traces.push_back(collect(joined(others)));
  }
  return traces;
}

TEST(TraceDamage, EveryCutOfAFileKeepsThePacketsBeforeIt) {
  const std::vector<std::string> packets = sample_packets();
  const std::string bytes = joined(packets);
  std::size_t packet = 0;
  std::size_t packet_start = 0;
  CollectedTrace intact = collect("");
  for (std::size_t length = 0; length <= bytes.size(); ++length) {
    if (packet < packets.size() && length == packet_start + packets[packet].size()) {
      packet_start = length;
      ++packet;
      intact = collect(std::string_view(bytes).substr(0, length));
      ASSERT_TRUE(intact.damages.empty());
      ASSERT_EQ(intact.summary.packet_count, packet);
    }
    const CollectedTrace cut = collect(std::string_view(bytes).substr(0, length));
    ASSERT_TRUE(cut.same_content(intact)) << length;
    ASSERT_EQ(cut.summary.has_end, packet == packets.size()) << length;
    ASSERT_EQ(cut.damages.size(), length == packet_start ? 0U : 1U) << length;
    if (!cut.damages.empty()) {
      ASSERT_EQ(cut.damages[0].offset, packet_start) << length;
    }
  }
}

TEST(TraceDamage, EveryBitThatFlipsLosesItsPacketAloneAndIsReported) {
  const std::vector<std::string> packets = sample_packets();
  const std::string bytes = joined(packets);
  const std::vector<CollectedTrace> without = traces_without_each(packets);
  std::size_t offset = 0;
  for (std::size_t packet = 0; packet < packets.size(); ++packet) {
    for (std::size_t i = 0; i < packets[packet].size(); ++i) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string damaged = bytes;
        damaged[offset + i] = static_cast<char>(damaged[offset + i] ^ (1 << bit));
        const CollectedTrace trace = collect(damaged);
        ASSERT_TRUE(trace.same_content(without[packet])) << "byte " << offset + i << " bit " << bit;
        ASSERT_EQ(trace.damages.size(), 1U);
        ASSERT_EQ(trace.damages[0].offset, offset);
      }
    }
    offset += packets[packet].size();
  }
}

TEST(TraceDamage, BytesOverwrittenAtRandomLoseOnlyThePacketsThatTheyHit) {
  const std::vector<std::string> packets = sample_packets();
  const std::string bytes = joined(packets);
  std::mt19937_64 random(3);
  for (int round = 0; round < 2000; ++round) {
    const std::size_t begin = random() % bytes.size();
    const std::size_t end = std::min<std::size_t>(bytes.size(), begin + 1 + random() % 300);
    std::string damaged = bytes;
    for (std::size_t i = begin; i < end; ++i) damaged[i] = static_cast<char>(random());
    std::vector<std::string> kept = packets;
    std::size_t offset = 0;
    for (std::string& packet : kept) {
      const std::size_t size = packet.size();
      if (std::string_view(damaged).substr(offset, size) != packet) packet.clear();
      offset += size;
    }
    const CollectedTrace trace = collect(damaged);
    ASSERT_TRUE(trace.same_content(collect(joined(kept)))) << round;
    ASSERT_EQ(trace.damages.empty(), damaged == bytes) << round;
  }
}

TEST(TraceDamage, MissingAndForeignBytesLoseOnlyThePacketsThatTheyHit) {
  const std::vector<std::string> packets = sample_packets();
  const std::string bytes = joined(packets);
  const std::vector<CollectedTrace> without = traces_without_each(packets);
  std::size_t offset = 0;
  for (std::size_t packet = 0; packet < packets.size(); ++packet) {
    const std::size_t middle = offset + packets[packet].size() / 2;
    std::string shorter = bytes;
    shorter.erase(middle, 1);
    EXPECT_TRUE(collect(shorter).same_content(without[packet])) << packet;
    std::string longer = bytes;
    longer.insert(middle, "\x0a\x0a\x0a noise \x0d\x0d");
    EXPECT_TRUE(collect(longer).same_content(without[packet])) << packet;
    std::string between = bytes;
    between.insert(offset, "\x0a\x7f\x0d noise between packets");
    EXPECT_TRUE(collect(between).same_content(collect(bytes))) << packet;
    EXPECT_EQ(collect(between).damages.size(), 1U);
    offset += packets[packet].size();
  }
}

TEST(TraceDamage, FilesInARowReadAsOneAfterTheOther) {
  const std::string first = joined(sample_packets());
  const std::string second = test::sample_file(test::SimulatedSteps(false).make(1));
  const CollectedTrace trace = collect(first + second + first);
  EXPECT_TRUE(trace.damages.empty());
  EXPECT_EQ(trace.identities.size(), 3U);
  EXPECT_EQ(trace.ends.size(), 3U);
  EXPECT_TRUE(trace.summary.has_end);
}

TEST(TraceDamage, AFileAfterOneThatWasCutIsReadInFull) {
  const std::string whole = joined(sample_packets());
  for (const std::size_t cut : {1U, 3U, 100U, 700U}) {
    const CollectedTrace trace = collect(whole.substr(0, whole.size() - cut) + whole);
    EXPECT_EQ(trace.ends.size(), 1U);
    EXPECT_EQ(trace.identities.size(), 2U);
    EXPECT_EQ(trace.damages.size(), 1U);
    EXPECT_TRUE(trace.summary.has_end);
  }
}

TEST(TraceDamage, NoBytesAreATraceWithoutPackets) {
  const CollectedTrace trace = collect("");
  EXPECT_TRUE(trace.damages.empty());
  EXPECT_EQ(trace.summary.packet_count, 0U);
  EXPECT_FALSE(trace.summary.has_end);
}

TEST(TraceDamage, WhatIsNoTraceAtAllIsOneDamageAtItsBegin) {
  std::mt19937_64 random(8);
  std::string noise(10'000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  for (const std::string& bytes : {noise, std::string("PAR1"), std::string(5000, '\x0a'), std::string(5000, '\xff')}) {
    const CollectedTrace trace = collect(bytes);
    EXPECT_EQ(trace.summary.packet_count, 0U);
    ASSERT_EQ(trace.damages.size(), 1U);
    EXPECT_EQ(trace.damages[0].offset, 0U);
  }
}

TEST(TraceDamage, AFileMadeToLookLikePacketsEverywhereIsGivenUpInLinearTime) {
  // Each five bytes claim to be a packet of the next 2 MB, so that a naive search would sum up the file at each.
  std::string bytes;
  while (bytes.size() < 4'000'000) bytes += std::string("\x0a\xff\xff\x7f\x0d", 5);
  const CollectedTrace trace = collect(bytes);
  EXPECT_EQ(trace.summary.packet_count, 0U);
  EXPECT_EQ(trace.damages.size(), 2U);
}

TEST(TraceDamage, AStepFilterPassesOverPacketsUndecodedAndGivesTheOthersWhole) {
  std::string bytes;
  append_identity(bytes, test::sample_identity());
  std::vector<std::vector<Span>> steps;
  for (std::uint32_t step = 100; step < 110; ++step) {
    steps.push_back(test::SimulatedSteps(false, step).make(1, step));
    append_spans(bytes, 1, step, steps.back());
  }
  append_step_times(bytes, test::sample_step_times());
  const CollectedTrace trace = collect(bytes, {.first_step = 103, .last_step = 104});
  EXPECT_EQ(trace.identities.size(), 1U);
  ASSERT_EQ(trace.batches.size(), 2U);
  EXPECT_TRUE(test::equal(trace.batches[0].spans, steps[3]));
  EXPECT_TRUE(test::equal(trace.batches[1].spans, steps[4]));
  EXPECT_TRUE(trace.step_times.empty());
  EXPECT_EQ(trace.summary.filtered_packet_count, 9U);
  EXPECT_EQ(trace.summary.packet_count, 12U);
  EXPECT_EQ(collect(bytes).batches.size(), 10U);
}

}  // namespace
}  // namespace smon_rt
