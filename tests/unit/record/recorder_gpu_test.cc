#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/fake_gpu_timer.h"
#include "record/recorder.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::CountingClock;
using testing::RingReader;

constexpr GpuContext kContext = 42;
constexpr GpuStream kStream = 7;

/// A thread that launches into kStream, whose events have been made. The host's clock counts readings, a nanosecond
/// each.
class RecorderOnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    make(testing::every_step_sampled());
    timer_.set_context(kContext);
    timer_.set_current_stream(kStream);
    timer_.set_device(kContext, 3);
    span(Kind::kOptimizer);  // asks for the stream
    recorder_->gpu_spans()->serve();
    rings_->take();
  }

  void make(RecorderOptions options) {
    recorder_.reset();
    options.clock = &clock_.clock();
    options.gpu_timer = &timer_;
    recorder_ = testing::make_recorder(options);
    ASSERT_NE(recorder_, nullptr);
    rings_ = std::make_unique<RingReader>(recorder_->arena());
  }

  void span(Kind kind, const std::function<void()>& inside = [] {}) {
    const Token token = recorder_->begin(kind);
    inside();
    recorder_->end(token);
  }
  void release(const Span& span) {
    timer_.release(span.device_start);
    timer_.release(span.device_end);
  }
  std::int64_t device_duration_ns(const Span& span) {
    timer_.finish(1'000'000'000'000);
    const auto elapsed = timer_.elapsed_ns(span.device_start, span.device_end);
    return elapsed ? *elapsed : -1;
  }
  std::uint64_t host_only() { return recorder_->gpu_spans()->host_only_spans(); }

  CountingClock clock_;
  FakeGpuTimer timer_{128};
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<RingReader> rings_;
};

void expect_host_only(const Span& span) {
  EXPECT_EQ(span.time_source, TimeSource::kHost);
  EXPECT_EQ(span.device_start, kNoEvent);
  EXPECT_EQ(span.device_end, kNoEvent);
}

TEST_F(RecorderOnGpu, AComputeHasAnEventAtEachEndAndATrack) {
  timer_.set_device_time(100);
  span(Kind::kForwardCompute, [&] { timer_.set_device_time(350); });
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].time_source, TimeSource::kGpuEvent);
  EXPECT_EQ(device_duration_ns(spans[0]), 250);
  EXPECT_EQ(spans[0].flags & span_flag::kInCapture, 0);
  const auto tracks = recorder_->interner().tracks_since(0);
  ASSERT_EQ(tracks.size(), 1u);
  EXPECT_EQ(spans[0].track_id, tracks[0].id);
  EXPECT_EQ(tracks[0].device, 3);
  EXPECT_EQ(tracks[0].stream, kStream);
  release(spans[0]);
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, ATrackThatIsGivenStays) {
  recorder_->end(recorder_->begin(Kind::kForwardCompute, {.track_id = 9}));
  EXPECT_EQ(rings_->take().at(0).track_id, 9);
}

TEST_F(RecorderOnGpu, UntilItsContextHasEventsASpanIsTheHostsAndCounted) {
  timer_.set_context(43);
  const std::uint64_t before = host_only();
  span(Kind::kForwardCompute);
  span(Kind::kForwardCompute);
  EXPECT_EQ(host_only(), before + 2);
  recorder_->gpu_spans()->serve();
  span(Kind::kForwardCompute);
  EXPECT_EQ(host_only(), before + 2);
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 3u);
  expect_host_only(spans[0]);
  expect_host_only(spans[1]);
  EXPECT_EQ(spans[2].time_source, TimeSource::kGpuEvent);
  EXPECT_EQ(timer_.context_of(spans[2].device_start), 43u);
}

TEST_F(RecorderOnGpu, WithoutAContextThereIsNoGpuAndNothingToCount) {
  timer_.set_context(0);
  const std::uint64_t before = host_only();
  span(Kind::kForwardCompute);
  expect_host_only(rings_->take().at(0));
  EXPECT_EQ(host_only(), before);
}

TEST_F(RecorderOnGpu, OtherKindsAndUnsampledStepsHaveNothingToDoWithTheGpu) {
  const std::size_t before = timer_.record_count();
  span(Kind::kDataLoading);
  span(Kind::kUser);
  span(Kind::kCollective);
  for (const Span& one : rings_->take()) expect_host_only(one);
  make(testing::no_step_sampled());
  span(Kind::kForwardCompute);
  EXPECT_TRUE(rings_->take().empty());
  EXPECT_EQ(timer_.record_count(), before);
}

TEST_F(RecorderOnGpu, TwoSpansThatMeetShareTheirBoundary) {
  span(Kind::kForwardCompute);
  span(Kind::kBackwardCompute);
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].device_end, spans[1].device_start);
  EXPECT_EQ(timer_.used_count(), 3u);
  release(spans[0]);
  EXPECT_EQ(timer_.used_count(), 2u) << "the second span still needs the boundary";
  release(spans[1]);
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, ABoundaryThatWasReleasedIsNotShared) {
  span(Kind::kForwardCompute);
  release(rings_->take().at(0));
  span(Kind::kBackwardCompute);
  EXPECT_NE(rings_->take().at(0).device_start, kNoEvent);
  EXPECT_EQ(timer_.used_count(), 2u);
}

TEST_F(RecorderOnGpu, NothingIsSharedAfterAPauseOrOverAnythingBetween) {
  const std::vector<std::pair<const char*, std::function<void()>>> between = {
      {"a pause", [&] { clock_.advance(GpuSpans::kShareWithinNs + 1); }},
      {"a span of the host", [&] { span(Kind::kUser); }},
      {"a metric", [&] { recorder_->metric(1, 2.5); }},
      {"a step", [&] { recorder_->step_begin(-1); }},
      {"another stream", [&] { timer_.set_current_stream(kStream + 1); }},
  };
  timer_.set_current_stream(kStream + 1);
  span(Kind::kOptimizer);
  recorder_->gpu_spans()->serve();
  recorder_->step_begin(0);
  rings_->take();
  for (const auto& [what, act] : between) {
    timer_.set_current_stream(kStream);
    const std::size_t before = timer_.used_count();
    span(Kind::kForwardCompute);
    act();
    span(Kind::kBackwardCompute);
    EXPECT_EQ(timer_.used_count(), before + 4) << what;
    for (const Span& one : rings_->take()) release(one);
  }
}

TEST_F(RecorderOnGpu, ASpanInsideAnotherIsNotTakenForOneAfterIt) {
  span(Kind::kForwardBackwardCombined, [&] { span(Kind::kForwardCompute); });
  EXPECT_EQ(timer_.used_count(), 4u);
}

// The GPU runs dry while the host stalls: what it did then is wait for a launch, not compute.
TEST_F(RecorderOnGpu, AHostStallBetweenTwoSpansIsLaunchDelayAndNotCompute) {
  constexpr std::int64_t kComputeNs = 10'000'000, kStallNs = 50'000'000;
  std::int64_t device_ns = 1'000'000;
  const auto compute = [&] { timer_.set_device_time(device_ns += kComputeNs); };
  timer_.set_device_time(device_ns);
  span(Kind::kForwardCompute, compute);
  clock_.advance(kStallNs);
  timer_.set_device_time(device_ns += kStallNs);
  span(Kind::kForwardCompute, compute);
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(device_duration_ns(spans[0]), kComputeNs);
  EXPECT_EQ(device_duration_ns(spans[1]), kComputeNs);
  const auto idle_ns = timer_.elapsed_ns(spans[0].device_end, spans[1].device_start);
  ASSERT_TRUE(idle_ns);
  EXPECT_EQ(*idle_ns, kStallNs);
}

TEST_F(RecorderOnGpu, InsideACaptureThereIsNoEventAndAFlag) {
  timer_.set_capturing(kStream, true);
  const std::uint64_t before = host_only();
  span(Kind::kForwardCompute);
  timer_.set_capturing(kStream, false);
  span(Kind::kForwardCompute, [&] { timer_.set_capturing(kStream, true); });
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 2u);
  for (const Span& one : spans) {
    expect_host_only(one);
    EXPECT_NE(one.flags & span_flag::kInCapture, 0);
  }
  EXPECT_EQ(timer_.used_count(), 0u) << "the event of a begin without an end is given back";
  EXPECT_EQ(host_only(), before) << "the flag says it";
}

TEST_F(RecorderOnGpu, WithoutAFreeEventASpanIsTheHosts) {
  std::vector<EventSlot> all;
  while (const EventSlot slot = timer_.record(kStream)) all.push_back(slot);
  timer_.release(all.back());
  span(Kind::kForwardCompute);
  expect_host_only(rings_->take().at(0));
  EXPECT_EQ(host_only(), 2u) << "and the one in SetUp";
  EXPECT_EQ(timer_.used_count(), all.size() - 1);
}

TEST_F(RecorderOnGpu, AFullRingGivesTheEventsBack) {
  while (recorder_->dropped_spans() == 0) span(Kind::kUser);
  span(Kind::kForwardCompute);
  EXPECT_EQ(testing::dropped(*recorder_, Kind::kForwardCompute), 1u);
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, SpansThatAreGivenUpGiveTheirEventsBack) {
  make([] {
    RecorderOptions options = testing::every_step_sampled();
    options.arena.sizes = ArenaSizes{.threads = 2, .large_threads = 1, .large_slots = 32, .slots = 16};
    return options;
  }());
  span(Kind::kOptimizer);
  recorder_->gpu_spans()->serve();
  for (std::int64_t step = 0; recorder_->header().more_losses.reclaimed_spans == 0; ++step) {
    ASSERT_LT(step, 100);
    recorder_->step_begin(step);
    recorder_->mark_end(recorder_->begin(Kind::kForwardCompute));
  }
  const auto given_up = static_cast<std::size_t>(recorder_->header().more_losses.reclaimed_spans.load());
  EXPECT_EQ(timer_.used_count() + 2 * given_up, 66u) << "two events for each span that was begun";
}

TEST_F(RecorderOnGpu, AnEndInAnotherContextIsNone) {
  const Token token = recorder_->begin(Kind::kForwardCompute);
  EXPECT_EQ(timer_.used_count(), 1u);
  timer_.set_context(43);
  std::thread([&] { recorder_->end(token); }).join();
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 1u);
  expect_host_only(spans[0]);
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, AnEndOnAnotherThreadIsOnTheStreamOfTheBegin) {
  const Token token = recorder_->begin(Kind::kBackwardCompute);
  timer_.set_current_stream(kStream + 5);
  std::thread([&] { recorder_->end(token); }).join();
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].time_source, TimeSource::kGpuEvent);
  EXPECT_NE(spans[0].flags & span_flag::kOtherThread, 0);
  recorder_->end(token);
  EXPECT_EQ(testing::stale(*recorder_), 1u);
  release(spans[0]);
  EXPECT_EQ(timer_.used_count(), 0u) << "ended once, whatever the second end tries";
}

TEST_F(RecorderOnGpu, AnEndThatWasNoticedLateHasNoEvent) {
  const Token token = recorder_->begin(Kind::kForwardCompute);
  const std::int64_t ended = clock_.now();
  clock_.advance(1000);
  recorder_->end_at(token, ended, TimeSource::kHost, 0);
  expect_host_only(rings_->take().at(0));
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, AnEndAtAMarkHasTheEventOfThen) {
  const Token token = recorder_->begin(Kind::kBackwardCompute);
  timer_.set_device_time(300);
  recorder_->mark_end(token);
  timer_.set_device_time(400);
  const std::int64_t ended = recorder_->mark_end(token);
  timer_.set_device_time(900);
  clock_.advance(1000);
  recorder_->end_at(token, ended, TimeSource::kHost, 0);
  span(Kind::kOptimizer);
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].time_source, TimeSource::kGpuEvent);
  EXPECT_EQ(spans[0].end, ended);
  EXPECT_EQ(device_duration_ns(spans[0]), 400) << "the last mark";
  EXPECT_NE(spans[1].device_start, spans[0].device_end);
  release(spans[0]);
  release(spans[1]);
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, AMarkThatWasNotTheEndIsGivenBack) {
  const Token token = recorder_->begin(Kind::kForwardCompute);
  recorder_->mark_end(token);
  timer_.set_device_time(900);
  recorder_->end(token);
  const Span span = rings_->take().at(0);
  EXPECT_EQ(device_duration_ns(span), 900);
  EXPECT_GT(recorder_->mark_end(token), span.end) << "of a span that has ended only the time";
  EXPECT_GT(recorder_->mark_end(0), span.end);
  release(span);
  EXPECT_EQ(timer_.used_count(), 0u);
}

TEST_F(RecorderOnGpu, TheTokenOfAnOpenSpanThatIsLookedForEndsItWithItsEvents) {
  const Token token = recorder_->begin(Kind::kForwardCompute);
  EXPECT_EQ(recorder_->current(), token);
  recorder_->annotate(token, {.microbatch = 5});
  recorder_->end(recorder_->find_open(1u << static_cast<unsigned>(Kind::kForwardCompute)));
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].time_source, TimeSource::kGpuEvent);
  EXPECT_EQ(spans[0].microbatch, 5);
}

TEST_F(RecorderOnGpu, ASlotThatHadASpanOnAGpuServesTheHostsNext) {
  span(Kind::kForwardCompute);
  rings_->take();
  const Token token = recorder_->begin(Kind::kUser);
  EXPECT_EQ(recorder_->current(), token);
  EXPECT_EQ(token & kOnGpu, 0u);
  recorder_->end(token);
  expect_host_only(rings_->take().at(0));
}

TEST_F(RecorderOnGpu, AWaitHasOneEventAtItsEnd) {
  const Token token = recorder_->begin(Kind::kGradsAllReduce);
  timer_.set_device_time(700);
  recorder_->end_at(token, 0, TimeSource::kWaitEvent, 0);
  span(Kind::kOptimizer);
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].time_source, TimeSource::kWaitEvent);
  EXPECT_EQ(spans[0].device_start, kNoEvent);
  EXPECT_NE(spans[0].device_end, kNoEvent);
  EXPECT_EQ(spans[0].track_id, spans[1].track_id);
  EXPECT_EQ(spans[1].device_start, spans[0].device_end) << "what follows at once begins there";
}

TEST_F(RecorderOnGpu, WhereAWaitIsTheStreamsItsReturnIsReplacedByAnEvent) {
  const std::vector<std::int32_t> members = {0, 1};
  const std::uint16_t nccl = recorder_->register_communicator("dp", "dp", members);
  const std::uint16_t gloo = recorder_->register_communicator("gloo", "dp", members);
  recorder_->set_stream_waits(nccl);
  recorder_->set_stream_waits(0);
  recorder_->set_stream_waits(60'000);
  const auto wait = [&](Kind kind, std::uint16_t comm_id) {
    recorder_->end_at(recorder_->begin(kind, {.comm_id = comm_id}), 0, TimeSource::kWaitReturn, 0);
    return rings_->take().at(0);
  };
  for (const Kind kind : {Kind::kForwardRecv, Kind::kBackwardSend, Kind::kGradsReduceScatter, Kind::kParamsAllGather}) {
    const Span span = wait(kind, nccl);
    EXPECT_EQ(span.time_source, TimeSource::kWaitEvent);
    EXPECT_NE(span.device_end, kNoEvent);
    EXPECT_EQ(span.name_or_comm_id, nccl);
    EXPECT_EQ(wait(kind, gloo).time_source, TimeSource::kWaitReturn);
    EXPECT_EQ(wait(kind, 0).time_source, TimeSource::kWaitReturn);
  }
  // Of tensor parallelism, among others.
  EXPECT_EQ(wait(Kind::kCollective, nccl).time_source, TimeSource::kWaitReturn);
  EXPECT_EQ(timer_.used_count(), 4u);
}

TEST_F(RecorderOnGpu, AWaitWithoutAnEventIsOneOfTheHost) {
  const auto wait = [&](std::int64_t ticks) {
    recorder_->end_at(recorder_->begin(Kind::kForwardRecv), ticks, TimeSource::kWaitEvent, 0);
    const Span span = rings_->take().at(0);
    EXPECT_EQ(span.time_source, TimeSource::kWaitReturn);
    EXPECT_EQ(span.device_end, kNoEvent);
    return span;
  };
  EXPECT_EQ(wait(clock_.now()).flags & span_flag::kInCapture, 0) << "noticed late";
  timer_.set_capturing(kStream, true);
  EXPECT_NE(wait(0).flags & span_flag::kInCapture, 0);
  timer_.set_context(0);
  wait(0);
}

TEST_F(RecorderOnGpu, DevicesHaveTracksOfTheirOwn) {
  timer_.set_device(43, 1);
  timer_.set_context(43);
  span(Kind::kForwardCompute);
  recorder_->gpu_spans()->serve();
  span(Kind::kForwardCompute);
  timer_.set_context(kContext);
  span(Kind::kForwardCompute);
  const auto spans = rings_->take();
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_NE(spans[1].device_end, spans[2].device_start) << "of two contexts nothing is shared";
  const auto tracks = recorder_->interner().tracks_since(0);
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[spans[1].track_id - 1u].device, 1);
  EXPECT_EQ(tracks[spans[2].track_id - 1u].device, 3);
}

TEST(RecorderWithoutGpu, AWaitEventIsAWaitOfTheHost) {
  const auto recorder = testing::make_recorder(testing::every_step_sampled());
  RingReader rings(recorder->arena());
  recorder->end_at(recorder->begin(Kind::kGradsAllReduce), 0, TimeSource::kWaitEvent, 0);
  const Token token = recorder->begin(Kind::kForwardCompute);
  recorder->end(token | kOnGpu);
  EXPECT_EQ(recorder->header().losses.foreign_tokens.load(), 1u) << "nobody gave that token";
  recorder->end(token);
  const auto spans = rings.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].time_source, TimeSource::kWaitReturn);
  expect_host_only(spans[1]);
}

}  // namespace
}  // namespace smon_rt
