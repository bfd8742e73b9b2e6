#include "record/recorder.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::CountingClock;
using testing::dropped;
using testing::every_step_sampled;
using testing::make_recorder;
using testing::no_step_sampled;
using testing::RingReader;

TEST(Recorder, ASpanArrivesInTheRingWithAllItsIds) {
  CountingClock clock;
  RecorderOptions options = every_step_sampled();
  options.clock = &clock.clock();
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  recorder->step_begin(41);
  const std::int64_t before = clock.now();
  const Token token = recorder->begin(Kind::kForwardCompute, {.microbatch = 3,
                                                              .chunk = 1,
                                                              .name_id = 9,
                                                              .peer = 12,
                                                              .payload_bytes = std::uint64_t{5} << 40 | 17,
                                                              .track_id = 4,
                                                              .flags = span_flag::kForwardOnly});
  ASSERT_NE(token, 0u);
  clock.advance(500);
  recorder->end(token, span_flag::kRecomputed);
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 1u);
  const Span& span = spans[0];
  EXPECT_EQ(span.start, before + 1);
  EXPECT_EQ(span.end, before + 502);
  EXPECT_EQ(span.device_start, 0);
  EXPECT_EQ(span.device_end, 0);
  EXPECT_EQ(span.step, 41u);
  EXPECT_EQ(span.kind, Kind::kForwardCompute);
  EXPECT_EQ(span.time_source, TimeSource::kHost);
  EXPECT_EQ(span.flags, span_flag::kForwardOnly | span_flag::kRecomputed);
  EXPECT_EQ(span.microbatch, 3);
  EXPECT_EQ(span.chunk, 1);
  EXPECT_EQ(span.name_or_comm_id, 9);
  EXPECT_EQ(span.peer, 12);
  EXPECT_EQ(span.payload_bytes(), std::uint64_t{5} << 40 | 17);
  EXPECT_EQ(span.track_id, 4);
  EXPECT_EQ(span.comm_seq, 0u);
}

TEST(Recorder, ASpanWithoutIdsHasNone) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  recorder->end(recorder->begin(Kind::kUser));
  const Span span = reader.take().at(0);
  EXPECT_EQ(span.microbatch, kNoIndex);
  EXPECT_EQ(span.chunk, kNoIndex);
  EXPECT_EQ(span.peer, kNoPeer);
  EXPECT_EQ(span.name_or_comm_id, kNoId);
  EXPECT_EQ(span.payload_bytes(), 0u);
}

TEST(Recorder, APayloadThatDoesNotFitIsItsMaximumAndSaysSo) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  recorder->end(recorder->begin(Kind::kUser, {.payload_bytes = std::numeric_limits<std::uint64_t>::max()}));
  const Span span = reader.take().at(0);
  EXPECT_EQ(span.payload_bytes(), kMaxPayloadBytes);
  EXPECT_TRUE(span.flags & span_flag::kSaturated);
}

TEST(Recorder, AnAbortedSpanSaysSo) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  recorder->abort(recorder->begin(Kind::kUser));
  EXPECT_TRUE(reader.take().at(0).flags & span_flag::kAborted);
}

TEST(Recorder, NothingBeginsBeforeItRuns) {
  auto made = Recorder::create(every_step_sampled());
  ASSERT_TRUE(made.has_value());
  Recorder& recorder = **made;
  EXPECT_EQ(recorder.begin(Kind::kUser), 0u);
  recorder.step_begin(1);
  recorder.metric(1, 2.0);
  EXPECT_EQ(recorder.recorded_spans(), 0u);
  EXPECT_EQ(recorder.steps(), 0u);
  EXPECT_FALSE(recorder.is_sampled());
}

TEST(Recorder, WhilePausedNothingBeginsAndWhatIsOpenEnds) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const Token open = recorder->begin(Kind::kUser);
  recorder->pause();
  EXPECT_EQ(recorder->begin(Kind::kUser), 0u);
  EXPECT_EQ(recorder->current(), 0u);
  recorder->end(open);
  EXPECT_EQ(reader.take().size(), 1u);
  EXPECT_TRUE(reader.open_spans().empty());
  recorder->resume();
  recorder->end(recorder->begin(Kind::kUser));
  EXPECT_EQ(reader.take().size(), 1u);
}

TEST(Recorder, AfterCloseEveryCallIsInert) {
  const auto recorder = make_recorder(every_step_sampled());
  const Token open = recorder->begin(Kind::kUser);
  recorder->close();
  recorder->end(open);
  recorder->annotate(open, {});
  EXPECT_EQ(recorder->begin(Kind::kUser), 0u);
  recorder->step_begin(4);
  recorder->resume();
  EXPECT_EQ(recorder->begin(Kind::kUser), 0u);
  EXPECT_EQ(recorder->recorded_spans(), 0u);
}

TEST(Recorder, ASecondRecorderOfAProcessIsRefusedUntilTheFirstIsGone) {
  auto first = make_recorder(every_step_sampled());
  RecorderOptions options = every_step_sampled();
  options.arena.run_id += "-second";
  auto second = Recorder::create(options);
  ASSERT_FALSE(second.has_value());
  EXPECT_NE(second.error().message.find("already"), std::string::npos);
  first.reset();
  EXPECT_TRUE(Recorder::create(options).has_value());
}

TEST(Recorder, ASpanOfAStepThatIsNotSampledIsOpenInTheTableAndNowhereElse) {
  const auto recorder = make_recorder(no_step_sampled());
  RingReader reader(recorder->arena());
  recorder->step_begin(7);
  EXPECT_FALSE(recorder->is_sampled());
  const Token token = recorder->begin(Kind::kForwardCompute, {.microbatch = 2});
  ASSERT_NE(token, 0u);
  const auto open = reader.open_spans();
  ASSERT_EQ(open.size(), 1u);
  EXPECT_EQ(open[0].microbatch, 2);
  EXPECT_EQ(open[0].step, 7u);
  EXPECT_EQ(open[0].start, 0) << "no clock is read";
  EXPECT_EQ(recorder->arena().slots(0)[0].is_recorded.load(), 0u);
  recorder->end(token);
  EXPECT_TRUE(reader.open_spans().empty());
  EXPECT_TRUE(reader.take().empty());
  EXPECT_EQ(recorder->dropped_spans(), 0u);
}

TEST(Recorder, AnOpenSpanShowsSinceWhenItIsOpen) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::int64_t before = recorder->clock().ticks();
  const Token token = recorder->begin(Kind::kOptimizer);
  const auto open = reader.open_spans();
  ASSERT_EQ(open.size(), 1u);
  EXPECT_GE(open[0].start, before);
  EXPECT_EQ(open[0].end, 0);
  recorder->end(token);
}

TEST(Recorder, IdsThatBecomeKnownLaterAreAdded) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const Token token = recorder->begin(Kind::kForwardCompute, {.microbatch = 1});
  recorder->annotate(token, {.chunk = 2, .payload_bytes = 99, .flags = span_flag::kInCapture});
  EXPECT_EQ(reader.open_spans().at(0).chunk, 2);
  recorder->end(token);
  const Span span = reader.take().at(0);
  EXPECT_EQ(span.microbatch, 1) << "what is not given stays";
  EXPECT_EQ(span.chunk, 2);
  EXPECT_EQ(span.payload_bytes(), 99u);
  EXPECT_TRUE(span.flags & span_flag::kInCapture);
}

TEST(Recorder, CurrentIsTheInnermostOpenSpanOfTheThread) {
  const auto recorder = make_recorder(every_step_sampled());
  EXPECT_EQ(recorder->current(), 0u);
  const Token outer = recorder->begin(Kind::kForwardCompute);
  const Token inner = recorder->begin(Kind::kCollective);
  EXPECT_EQ(recorder->current(), inner);
  recorder->end(inner);
  EXPECT_EQ(recorder->current(), outer);
  const Token third = recorder->begin(Kind::kCollective);
  const Token fourth = recorder->begin(Kind::kCollective);
  recorder->end(third);
  EXPECT_EQ(recorder->current(), fourth) << "spans may overlap";
  recorder->end(fourth);
  recorder->end(outer);
  EXPECT_EQ(recorder->current(), 0u);
}

TEST(Recorder, AMetricIsRecordedInEveryStepWithItsNameAndValue) {
  const auto recorder = make_recorder(no_step_sampled());
  RingReader reader(recorder->arena());
  recorder->step_begin(3);
  recorder->metric(recorder->interner().name("loss"), -2.5);
  const Span span = reader.take().at(0);
  EXPECT_EQ(span.kind, Kind::kMetric);
  EXPECT_EQ(span.step, 3u);
  EXPECT_EQ(span.name_or_comm_id, 1);
  EXPECT_EQ(span.metric_value(), -2.5);
  EXPECT_EQ(span.start, span.end);
}

TEST(Recorder, AKindThatDoesNotExistIsDroppedAndCounted) {
  const auto recorder = make_recorder(every_step_sampled());
  EXPECT_EQ(recorder->begin(static_cast<Kind>(kKindCount)), 0u);
  EXPECT_EQ(recorder->begin(static_cast<Kind>(255)), 0u);
  EXPECT_EQ(recorder->dropped_spans(), 2u);
}

TEST(Recorder, LaunchesAreNumberedPerKindAndStep) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  for (int step = 0; step < 3; ++step) {
    recorder->step_begin(step);
    for (int i = 0; i < 4; ++i) {
      recorder->end(recorder->begin(Kind::kForwardCompute));
      recorder->end(recorder->begin(Kind::kBackwardCompute));
    }
  }
  std::vector<int> next(kKindCount, 0);
  for (const Span& span : reader.take()) {
    if (span.kind == Kind::kStep) {
      next.assign(kKindCount, 0);
      continue;
    }
    EXPECT_EQ(span.op_index, next[static_cast<std::size_t>(span.kind)]++);
  }
  EXPECT_EQ(next[static_cast<std::size_t>(Kind::kForwardCompute)], 4);
}

TEST(Recorder, ALaunchNumberThatDoesNotFitIsItsMaximumAndSaysSo) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  for (int i = 0; i < 66'000; ++i) {
    recorder->end(recorder->begin(Kind::kUser));
    if (i % 1000 != 999) continue;
    const Span last = reader.take().back();
    EXPECT_EQ(last.op_index, std::min(i, 0xffff));
    EXPECT_EQ((last.flags & span_flag::kSaturated) != 0, i >= 0xffff);
  }
}

TEST(Recorder, AFullRingDropsAndCountsByKindAndTheIndicesWrap) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint32_t capacity = recorder->arena().sizes().large_ring_spans;
  for (int round = 0; round < 5; ++round) {
    const std::uint64_t dropped_before = dropped(*recorder, Kind::kUser);
    for (std::uint32_t i = 0; i < capacity + 100; ++i) {
      recorder->end(recorder->begin(Kind::kUser, {.payload_bytes = i}));
    }
    EXPECT_EQ(dropped(*recorder, Kind::kUser) - dropped_before, 100u);
    const auto entries = reader.take_entries();
    ASSERT_EQ(entries.size(), capacity);
    for (std::uint32_t i = 0; i < capacity; ++i) {
      ASSERT_EQ(entries[i].span.payload_bytes(), i) << "the oldest stay, in order";
      ASSERT_EQ(entries[i].index, static_cast<std::uint64_t>(round) * capacity + i);
    }
  }
  EXPECT_EQ(recorder->recorded_spans(), 5u * capacity);
  EXPECT_EQ(recorder->dropped_spans(), 500u);
}

}  // namespace
}  // namespace smon_rt
