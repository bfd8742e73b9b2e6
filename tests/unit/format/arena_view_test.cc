#include "format/arena_view.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

#include "arena_samples.h"

namespace smon_rt {
namespace {

using test::filled_arena;
using test::SampleArena;

TEST(ArenaView, TheHeaderIsReadAsItWasWritten) {
  const SampleArena arena = filled_arena();
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents) << contents.error().message;
  const ArenaFacts& facts = contents->facts;
  EXPECT_EQ(facts.pid, 4711);
  EXPECT_EQ(facts.process_start_ticks, 99U);
  EXPECT_EQ(facts.rank, 3);
  EXPECT_EQ(facts.world_size, 8);
  EXPECT_EQ(facts.attempt, 1U);
  EXPECT_EQ(facts.run_id, "run-7f3a");
  EXPECT_EQ(facts.host, "node-03");
  EXPECT_EQ(facts.boot_id, "0b6f3c62");
  EXPECT_EQ(facts.trace_file, "traces/rank-00003.run-7f3a-1.smon");
  EXPECT_TRUE(facts.clock.is_valid);
  EXPECT_EQ(facts.clock.source, 1U);
  EXPECT_EQ(facts.clock.realtime_ns, 1'700'000'000'000'000'000);
  EXPECT_EQ(facts.drain_beat_ns, 11);
  EXPECT_EQ(facts.watchdog_beat_ns, 12);
  EXPECT_EQ(facts.reporter_beat_ns, 13);
  EXPECT_EQ(facts.step, 42);
  EXPECT_EQ(facts.step_start_ticks, 900);
  EXPECT_TRUE(facts.is_sampled);
  EXPECT_EQ(facts.phase, static_cast<std::uint32_t>(Phase::kTraining));
  EXPECT_EQ(facts.finished_steps, 41U);
  TraceLosses losses;
  losses.dropped_by_kind = {{2, 7}};
  losses.stale_tokens = 1;
  losses.late_requests = 2;
  EXPECT_EQ(facts.losses, losses);
  EXPECT_TRUE(contents->problems.empty());
}

TEST(ArenaView, UnreadSpansComeInTheRingsOrderWithTheirIndices) {
  const SampleArena arena = filled_arena();
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  ASSERT_EQ(contents->threads.size(), 2U);
  const ArenaThread& main = contents->threads[0];
  EXPECT_EQ(main.state, ThreadState::kLive);
  EXPECT_EQ(main.name, "python");
  EXPECT_EQ(main.thread_id, 4711);
  EXPECT_EQ(main.ring_id, 1U);
  EXPECT_EQ(main.first_index, 13U);
  ASSERT_EQ(main.unread.size(), 5U);
  for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(main.unread[i].start, static_cast<std::int64_t>(13 + i));
  const ArenaThread& exited = contents->threads[1];
  EXPECT_EQ(exited.state, ThreadState::kExited);
  EXPECT_EQ(exited.name, "exactly16letters");
  EXPECT_EQ(exited.ring_id, 3U);
  EXPECT_EQ(exited.unread.size(), 8U);
}

TEST(ArenaView, IndicesMayPassTheEndOfTheirType) {
  SampleArena arena;
  const std::uint64_t near_end = std::numeric_limits<std::uint64_t>::max() - 2;
  arena.set_unread(1, near_end, near_end + 6);
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  ASSERT_EQ(contents->threads.size(), 1U);
  EXPECT_EQ(contents->threads[0].first_index, near_end);
  ASSERT_EQ(contents->threads[0].unread.size(), 6U);
  EXPECT_EQ(contents->threads[0].unread[5].start, 2);
}

TEST(ArenaView, OpenSpansAreThoseThatNobodyWasWriting) {
  const SampleArena arena = filled_arena();
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  const ArenaThread& main = contents->threads[0];
  ASSERT_EQ(main.open.size(), 1U);
  EXPECT_EQ(main.open[0].span.kind, Kind::kForwardRecv);
  EXPECT_EQ(main.open[0].span.start, 1200);
  EXPECT_EQ(main.open[0].generation, 9U);
  EXPECT_TRUE(main.open[0].is_recorded);
  EXPECT_EQ(main.unreadable_slots, 2U);
}

TEST(ArenaView, CommunicatorsInUseAreRead) {
  const SampleArena arena = filled_arena();
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  ASSERT_EQ(contents->communicators.size(), 1U);
  const ArenaCommunicator& comm = contents->communicators[0];
  EXPECT_EQ(comm.comm_id, 2U);
  EXPECT_EQ(comm.member_count, 4);
  EXPECT_EQ(comm.name, "dp-group");
  EXPECT_EQ(comm.dimension, "dp");
  EXPECT_EQ(comm.enqueued, 30U);
  EXPECT_EQ(comm.started, 29U);
  EXPECT_EQ(comm.completed, 28U);
  EXPECT_EQ(comm.last_enqueued_ticks, 1100);
  EXPECT_EQ(comm.last_completed_ticks, 1050);
  EXPECT_EQ(comm.last_kind, static_cast<std::uint32_t>(Kind::kGradsReduceScatter));
}

TEST(ArenaView, ACopyAtAnyAddressIsRead) {
  const std::vector<std::byte> copy = filled_arena().unaligned_copy();
  const Result<ArenaContents> contents = read_arena(std::span(copy).subspan(1));
  ASSERT_TRUE(contents);
  EXPECT_EQ(contents->threads.size(), 2U);
}

TEST(ArenaView, LongerRecordsOfALaterWriterAreSteppedOver) {
  SampleArena arena = filled_arena();
  // Every second thread record and every second communicator, as if each were twice as long.
  arena.header().thread_record_bytes *= 2;
  arena.header().thread_record_count /= 2;
  arena.header().comm_record_bytes *= 2;
  arena.header().comm_record_count /= 2;
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  ASSERT_EQ(contents->threads.size(), 2U);
  EXPECT_EQ(contents->threads[1].ring_id, 3U);
  EXPECT_TRUE(contents->communicators.empty());
}

TEST(ArenaView, TheCopyMayBeLongerThanTheArena) {
  const SampleArena arena = filled_arena();
  std::vector<std::byte> copy(arena.bytes().begin(), arena.bytes().end());
  copy.resize(copy.size() + 4096);
  EXPECT_TRUE(read_arena(copy));
}

void expect_error(SampleArena& arena, std::string_view words) {
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_FALSE(contents) << words;
  EXPECT_NE(contents.error().message.find(words), std::string::npos) << contents.error().message;
  EXPECT_EQ(contents.error().message.find('\n'), std::string::npos);
}

void expect_error(std::string_view words, const std::function<void(ArenaHeader&)>& change) {
  SampleArena arena = filled_arena();
  change(arena.header());
  expect_error(arena, words);
}

TEST(ArenaView, WhatIsNoCompleteArenaIsRefusedWithTheReason) {
  EXPECT_NE(read_arena({}).error().message.find("too short"), std::string::npos);
  expect_error("not an arena", [](ArenaHeader& header) { header.magic[7] = '2'; });
  expect_error("being set up", [](ArenaHeader& header) { header.is_complete = 0; });
  expect_error("is cut", [](ArenaHeader& header) { header.arena_bytes += 1; });
  expect_error("is cut", [](ArenaHeader& header) { header.arena_bytes = ~std::uint64_t{0}; });
  expect_error("contradict", [](ArenaHeader& header) { header.arena_bytes = 10; });
  expect_error("contradict", [](ArenaHeader& header) { header.header_bytes = 8; });
  expect_error("contradict", [](ArenaHeader& header) { header.header_bytes = 0xFFFFFFFF; });
  expect_error("shorter", [](ArenaHeader& header) { header.span_bytes = 0; });
  expect_error("shorter", [](ArenaHeader& header) { header.slot_bytes = 1; });
  expect_error("shorter", [](ArenaHeader& header) { header.thread_record_bytes = 191; });
  expect_error("shorter", [](ArenaHeader& header) { header.comm_record_bytes = 0; });
  expect_error("outside", [](ArenaHeader& header) { header.thread_record_count = 0xFFFFFFFF; });
  expect_error("outside", [](ArenaHeader& header) { header.comm_record_count = 1000; });
  expect_error("outside", [](ArenaHeader& header) { header.thread_records_offset = ~std::uint64_t{0} - 5; });
  expect_error("outside", [](ArenaHeader& header) { header.comm_record_bytes = 0xFFFFFFFF; });
}

TEST(ArenaView, EveryCutIsRefused) {
  const SampleArena arena = filled_arena();
  for (std::size_t length = 0; length < arena.bytes().size(); ++length) {
    ASSERT_FALSE(read_arena(arena.bytes().first(length))) << length;
  }
}

/// The second thread is left out for this reason; the first is read.
void expect_problem(std::string_view words, const std::function<void(ThreadRecord&)>& change) {
  SampleArena arena = filled_arena();
  change(arena.thread(2));
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents) << words;
  EXPECT_EQ(contents->threads.size(), 1U) << words;
  ASSERT_EQ(contents->problems.size(), 1U) << words;
  EXPECT_NE(contents->problems[0].find(words), std::string::npos) << contents->problems[0];
  EXPECT_NE(contents->problems[0].find("thread record 2"), std::string::npos) << contents->problems[0];
}

TEST(ArenaView, AThreadWhoseRecordContradictsItselfIsLeftOutWithTheReason) {
  expect_problem("power of two", [](ThreadRecord& thread) { thread.ring_capacity = 7; });
  expect_problem("power of two", [](ThreadRecord& thread) { thread.ring_capacity = 0; });
  expect_problem("ring lies outside", [](ThreadRecord& thread) { thread.ring_capacity = 1U << 31; });
  expect_problem("ring lies outside", [](ThreadRecord& thread) { thread.ring_offset = ~std::uint64_t{0} - 100; });
  expect_problem("ring lies outside", [](ThreadRecord& thread) { thread.ring_offset = SampleArena::kBytes - 10; });
  expect_problem("slots lie outside", [](ThreadRecord& thread) { thread.slot_count = 0xFFFFFFFF; });
  expect_problem("slots lie outside", [](ThreadRecord& thread) { thread.slots_offset = ~std::uint64_t{0}; });
  expect_problem("indices", [](ThreadRecord& thread) { thread.write_index = 9; });
  expect_problem("indices", [](ThreadRecord& thread) { thread.read_index = 1'000'000; });
  expect_problem("state", [](ThreadRecord& thread) { thread.state = static_cast<ThreadState>(77); });
}

TEST(ArenaView, AReaderThatPassedTheWriterWhileTheCopyWasMadeLeavesNothingUnread) {
  SampleArena arena = filled_arena();
  arena.thread(2).read_index = 11;  // three more than the write_index that was copied before it
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  ASSERT_EQ(contents->threads.size(), 2U);
  EXPECT_TRUE(contents->threads[1].unread.empty());
  EXPECT_EQ(contents->threads[1].first_index, 11U);
}

TEST(ArenaView, ManyThreadsThatClaimOneRingCostNoMoreThanTheArena) {
  std::vector<std::byte> memory(1 << 20);
  const SampleArena sample = filled_arena();
  std::memcpy(memory.data(), sample.bytes().data(), sample.bytes().size());
  auto set = [&memory](std::size_t offset, auto value) { std::memcpy(memory.data() + offset, &value, sizeof(value)); };
  constexpr std::uint32_t kCount = 4000;
  set(offsetof(ArenaHeader, arena_bytes), std::uint64_t{memory.size()});
  set(offsetof(ArenaHeader, thread_record_count), kCount);
  set(offsetof(ArenaHeader, comm_record_count), std::uint32_t{0});
  for (std::uint32_t i = 0; i < kCount; ++i) {
    const std::size_t record = SampleArena::kThreadsOffset + i * sizeof(ThreadRecord);
    set(record + offsetof(ThreadRecord, state), ThreadState::kLive);
    set(record + offsetof(ThreadRecord, ring_capacity), std::uint32_t{8192});
    set(record + offsetof(ThreadRecord, ring_offset), std::uint64_t{0});
    set(record + offsetof(ThreadRecord, slots_offset), std::uint64_t{0});
    set(record + offsetof(ThreadRecord, slot_count), std::uint32_t{0});
    set(record + offsetof(ThreadRecord, read_index), std::uint64_t{0});
    set(record + offsetof(ThreadRecord, write_index), std::uint64_t{8192});
  }
  const Result<ArenaContents> contents = read_arena(memory);
  ASSERT_TRUE(contents);
  std::size_t span_count = 0;
  for (const ArenaThread& thread : contents->threads) span_count += thread.unread.size();
  EXPECT_LE(span_count * sizeof(Span), memory.size());
  EXPECT_EQ(contents->threads.size() + contents->problems.size(), kCount);
}

TEST(ArenaView, AnyBytesAreReadWithoutHarm) {
  const SampleArena arena = filled_arena();
  std::mt19937_64 random(6);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> damaged(arena.bytes().begin(), arena.bytes().end());
    for (std::uint64_t flips = 1 + random() % 8; flips > 0; --flips) {
      damaged[random() % damaged.size()] ^= static_cast<std::byte>(1 << random() % 8);
    }
    const Result<ArenaContents> contents = read_arena(damaged);
    if (contents) {
      EXPECT_LE(contents->threads.size(), SampleArena::kThreads);
    }
  }
}

TEST(ArenaView, TicksBecomeNanosecondsAndNeverOverflow) {
  const ArenaClockReading clock{true, 1, 1000, 50'000, 0, 0.5};
  EXPECT_EQ(clock.to_monotonic_ns(1000), 50'000);
  EXPECT_EQ(clock.to_monotonic_ns(1200), 50'100);
  EXPECT_EQ(clock.to_monotonic_ns(0), 49'500);
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  ArenaClockReading fast = clock;
  fast.ns_per_tick = 1e300;
  EXPECT_EQ(fast.to_monotonic_ns(kMax), kMax);
  EXPECT_EQ(fast.to_monotonic_ns(kMin), kMin);
  ArenaClockReading broken = clock;
  broken.ns_per_tick = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(broken.to_monotonic_ns(5), 50'000);
}

TEST(ArenaView, ASpanOfARingBecomesOneOfAFile) {
  const ArenaClockReading clock{true, 1, 1000, 50'000, 0, 0.5};
  Span span;
  span.start = 1200;
  span.end = 1400;
  span.device_start = 3;
  span.device_end = 4;
  span.time_source = TimeSource::kGpuEvent;
  span.microbatch = 2;
  const Span converted = in_nanoseconds(span, clock);
  EXPECT_EQ(converted.start, 50'100);
  EXPECT_EQ(converted.end, 50'200);
  EXPECT_EQ(converted.device_start, 0);
  EXPECT_EQ(converted.device_end, 0);
  EXPECT_EQ(converted.time_source, TimeSource::kHost);
  EXPECT_EQ(converted.microbatch, 2);
  span.time_source = TimeSource::kWaitReturn;
  EXPECT_EQ(in_nanoseconds(span, clock).time_source, TimeSource::kWaitReturn);
}

TEST(ArenaView, AClockThatWasBeingWrittenIsSaid) {
  for (const std::uint32_t sequence : {0U, 3U}) {
    SampleArena arena = filled_arena();
    arena.header().clock.sequence = sequence;
    EXPECT_FALSE(read_arena(arena.bytes())->facts.clock.is_valid);
  }
  SampleArena arena = filled_arena();
  arena.header().clock.ns_per_tick = -1;
  EXPECT_FALSE(read_arena(arena.bytes())->facts.clock.is_valid);
}

/// Entries lie where the ring of the unused thread 3 would.
SampleArena arena_with_steps(std::uint64_t read_index, std::uint64_t write_index) {
  SampleArena arena = filled_arena();
  ArenaHeader& header = arena.header();
  Span& place = arena.ring_entry(3, 0);
  header.step_log_offset =
      static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(&place) - reinterpret_cast<std::byte*>(&header));
  header.step_log_capacity = 8;
  header.step_ticks_bytes = sizeof(StepTicks);
  header.step_read_index = read_index;
  header.step_write_index = write_index;
  auto* entries = reinterpret_cast<StepTicks*>(&place);
  for (std::uint64_t index = read_index; index != write_index && index - read_index < 8; ++index) {
    entries[index % 8] = {.step = static_cast<std::uint32_t>(index),
                          .is_sampled = index % 2 == 0,
                          .is_warmup = index < 7,
                          .start_ticks = static_cast<std::int64_t>(index * 100),
                          .end_ticks = static_cast<std::int64_t>(index * 100 + 50)};
  }
  return arena;
}

TEST(ArenaView, StepsThatWereNotWrittenComeInTheirOrder) {
  const SampleArena arena = arena_with_steps(6, 11);  // wraps
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  EXPECT_TRUE(contents->problems.empty());
  ASSERT_EQ(contents->steps.size(), 5U);
  for (std::uint32_t i = 0; i < 5; ++i) {
    EXPECT_EQ(contents->steps[i].step, 6 + i);
    EXPECT_EQ(contents->steps[i].is_sampled, i % 2 == 0);
    EXPECT_EQ(contents->steps[i].is_warmup, i == 0);
    EXPECT_EQ(contents->steps[i].end_ticks, 650 + i * 100);
  }
}

TEST(ArenaView, ADamagedLogOfStepsIsLeftOutAndSaid) {
  for (const auto damage : {+[](ArenaHeader& header) { header.step_log_capacity = 7; },
                            +[](ArenaHeader& header) { header.step_log_offset = std::uint64_t{1} << 63; },
                            +[](ArenaHeader& header) { header.step_ticks_bytes = 1; },
                            +[](ArenaHeader& header) { header.step_write_index = 1000; },
                            +[](ArenaHeader& header) { header.step_read_index = 12; }}) {
    SampleArena arena = arena_with_steps(6, 11);
    damage(arena.header());
    const Result<ArenaContents> contents = read_arena(arena.bytes());
    ASSERT_TRUE(contents);
    EXPECT_TRUE(contents->steps.empty());
    EXPECT_EQ(contents->problems.size(), 1U);
    EXPECT_EQ(contents->threads.size(), 2U) << "the rest is taken";
  }
}

/// Records lie where the ring of the unused thread 3 would.
SampleArena arena_with_channels() {
  SampleArena arena = filled_arena();
  ArenaHeader& header = arena.header();
  Span& place = arena.ring_entry(3, 0);
  header.channel_records_offset =
      static_cast<std::uint64_t>(reinterpret_cast<std::byte*>(&place) - reinterpret_cast<std::byte*>(&header));
  header.channel_record_bytes = sizeof(ChannelRecord);
  header.channel_record_count = 3;
  static_assert(sizeof(ChannelRecord) == sizeof(Span));
  for (std::uint64_t i = 0; i < 3; ++i) new (&arena.ring_entry(3, i)) ChannelRecord;
  auto& channel = *reinterpret_cast<ChannelRecord*>(&arena.ring_entry(3, 1));
  channel.key = ChannelRecord::make_key(70'000, 63, true);
  channel.nccl_comm = 0xabcdef;
  channel.begun = 9;
  channel.moved = 8;
  channel.done = 7;
  channel.moved_bytes = 1 << 20;
  channel.state = ChannelState::kSendWait;
  channel.state_ticks = 1234;
  channel.comm_id = 2;
  channel.peer = 5;
  return arena;
}

TEST(ArenaView, ChannelsInUseAreRead) {
  const SampleArena arena = arena_with_channels();
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  EXPECT_TRUE(contents->problems.empty());
  ASSERT_EQ(contents->channels.size(), 1U);
  const ArenaChannel& channel = contents->channels[0];
  EXPECT_EQ(channel.communicator, 70'000U);
  EXPECT_EQ(channel.channel, 63U);
  EXPECT_TRUE(channel.is_send);
  EXPECT_EQ(channel.nccl_comm, 0xabcdefU);
  EXPECT_EQ(channel.begun, 9U);
  EXPECT_EQ(channel.moved, 8U);
  EXPECT_EQ(channel.done, 7U);
  EXPECT_EQ(channel.moved_bytes, 1U << 20);
  EXPECT_EQ(channel.state, static_cast<std::uint32_t>(ChannelState::kSendWait));
  EXPECT_EQ(channel.state_ticks, 1234);
  EXPECT_EQ(channel.comm_id, 2U);
  EXPECT_EQ(channel.peer, 5);
}

TEST(ArenaView, ADamagedTableOfChannelsIsLeftOutAndSaid) {
  for (const auto damage : {+[](ArenaHeader& header) { header.channel_record_bytes = 8; },
                            +[](ArenaHeader& header) { header.channel_record_count = 0xffffffff; },
                            +[](ArenaHeader& header) { header.channel_records_offset = std::uint64_t{1} << 63; }}) {
    SampleArena arena = arena_with_channels();
    damage(arena.header());
    const Result<ArenaContents> contents = read_arena(arena.bytes());
    ASSERT_TRUE(contents);
    EXPECT_TRUE(contents->channels.empty());
    EXPECT_EQ(contents->problems.size(), 1U);
    EXPECT_EQ(contents->threads.size(), 2U) << "the rest is taken";
  }
}

TEST(ArenaView, AnArenaOfBeforeThereWereChannelsIsRead) {
  SampleArena arena = arena_with_channels();
  arena.header().header_bytes = kThirdHeaderBytes;
  arena.header().settled_bytes = 77;
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  EXPECT_TRUE(contents->channels.empty());
  EXPECT_TRUE(contents->problems.empty());
  EXPECT_EQ(contents->facts.settled_bytes, 77U);
}

TEST(ArenaView, WhatTheHeaderGotLastIsReadFromThoseThatHaveIt) {
  SampleArena arena = arena_with_steps(6, 11);
  arena.header().more_losses.reclaimed_spans = 3;
  arena.header().more_losses.saturated_steps = 4;
  arena.header().more_losses.misused_calls = 5;
  arena.header().host_only_spans = 6;
  arena.header().settled_bytes = 4096;
  arena.header().settled_communicators = 2;
  arena.header().overwritten_comm_ops = 7;
  for (const bool has_it : {true, false}) {
    if (!has_it) arena.header().header_bytes = kSecondHeaderBytes;
    const Result<ArenaContents> contents = read_arena(arena.bytes());
    ASSERT_TRUE(contents);
    const ArenaFacts& facts = contents->facts;
    EXPECT_EQ(facts.losses.reclaimed_spans, has_it ? 3U : 0U);
    EXPECT_EQ(facts.losses.saturated_steps, has_it ? 4U : 0U);
    EXPECT_EQ(facts.losses.misused_calls, has_it ? 5U : 0U);
    EXPECT_EQ(facts.losses.host_only_spans, has_it ? 6U : 0U);
    EXPECT_EQ(facts.losses.overwritten_comm_ops, has_it ? 7U : 0U);
    EXPECT_EQ(facts.settled_bytes, has_it ? 4096U : 0U);
    EXPECT_EQ(facts.settled_communicators, has_it ? 2U : 0U);
    EXPECT_EQ(contents->steps.size(), 5U) << "which both have";
  }
}

TEST(ArenaView, AnArenaOfBeforeStepsWereLoggedIsRead) {
  SampleArena arena = arena_with_steps(6, 11);
  arena.header().header_bytes = kFirstHeaderBytes;
  arena.header().losses.uncounted_sequences = 0xdead;  // what lay there then was something else
  const Result<ArenaContents> contents = read_arena(arena.bytes());
  ASSERT_TRUE(contents);
  EXPECT_TRUE(contents->problems.empty());
  EXPECT_TRUE(contents->steps.empty());
  EXPECT_EQ(contents->facts.losses.uncounted_sequences, 0U);
  EXPECT_EQ(contents->threads.size(), 2U);
}

}  // namespace
}  // namespace smon_rt
