#include "record/comm_times.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fakes/fake_gpu_timer.h"
#include "record/recorder.h"
#include "record/ring_collector.h"
#include "recorder_fixture.h"
#include "unit/format/collected_trace.h"

namespace smon_rt {
namespace {

using testing::CountingClock;

constexpr std::int64_t kMsNs = 1'000'000;
constexpr std::int64_t kSecondNs = 1'000'000'000;
constexpr std::int64_t kTimerOrigin = 1'700'000'000'000'000'000;

const CommTracker* g_tracker = nullptr;
const CommTracker* find_tracker() noexcept {
  return g_tracker;
}

/// A host whose clock moves when the test says; a GPU whose timer has another origin.
class CommTimesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    RecorderOptions options = testing::every_step_sampled();
    options.clock = &clock_.clock();
    recorder_ = testing::make_recorder(options);
    ASSERT_NE(recorder_, nullptr);
    g_tracker = &tracker_;
    converter_.add(clock_.clock().read());
    clock_.advance(50 * kMsNs);
    converter_.add(clock_.clock().read());
    resolver_ =
        std::make_unique<EventResolver>(recorder_->arena(), recorder_->interner(), timer_, clock_.clock(), converter_);
    times_ = std::make_unique<CommTimes>(&find_tracker, clock_.clock(), converter_, *resolver_);
    rings_ = std::make_unique<RingCollector>(recorder_->arena(), converter_, *resolver_, kSecondNs, times_.get());
    communicator_ = tracker_.open_communicator(0xabc, false);
    comm_id_ = recorder_->register_communicator("dp", "dp", {});
    recorder_->step_begin(0);
  }
  void TearDown() override { g_tracker = nullptr; }

  std::uint64_t timer_now() const { return static_cast<std::uint64_t>(kTimerOrigin + clock_.now()); }
  Token begin(Kind kind = Kind::kGradsAllReduce) { return recorder_->begin(kind, {.comm_id = comm_id_}); }
  CommHandle op(bool asks_kernels = true, bool is_captured = false) {
    CommOpFacts facts;
    facts.channel_count = 1;
    facts.asks_kernels = asks_kernels;
    const CommHandle call = tracker_.begin_call(*recorder_, communicator_, tracker_.begin_group(), is_captured);
    const CommHandle made = tracker_.begin_op(*recorder_, communicator_, call, facts);
    tracker_.end(*recorder_, made);
    tracker_.end(*recorder_, call);
    return made;
  }
  /// A span and its op.
  CommHandle span_with_op(Kind kind = Kind::kGradsAllReduce) {
    const Token span = begin(kind);
    const CommHandle made = op();
    recorder_->end(span);
    return made;
  }
  CommHandle start_kernel(CommHandle op) {
    return tracker_.begin_kernel(*recorder_, communicator_, op, 0, timer_now());
  }
  void stop_kernel(CommHandle kernel) {
    tracker_.kernel_stopped(*recorder_, kernel, timer_now());
    tracker_.end(*recorder_, kernel);
  }
  void run_kernel(CommHandle op, std::int64_t duration_ns) {
    const CommHandle kernel = start_kernel(op);
    clock_.advance(duration_ns);
    stop_kernel(kernel);
  }
  /// A look of the drain thread, when whatever waits for company has waited.
  void flush(bool everything = false) {
    times_->look();
    rings_->look(clock_.now(), false);
    clock_.advance(2 * kSecondNs);
    converter_.add(clock_.clock().read());
    times_->look();
    if (rings_->look(clock_.now(), everything) > 0) rings_->encode(bytes_);
    rings_->commit();
  }
  std::vector<Span> spans() const {
    std::vector<Span> found;
    for (const Span& span : test::collect(bytes_).all_spans()) {
      if (is_communication(span.kind)) found.push_back(span);
    }
    return found;
  }

  CountingClock clock_;
  FakeGpuTimer timer_{16};
  ClockConverter converter_;
  std::unique_ptr<Recorder> recorder_;
  CommTracker tracker_;
  std::unique_ptr<EventResolver> resolver_;
  std::unique_ptr<CommTimes> times_;
  std::unique_ptr<RingCollector> rings_;
  CommHandle communicator_ = 0;
  std::uint16_t comm_id_ = 0;
  std::string bytes_;
};

TEST_F(CommTimesTest, ASpanHasTheTimesOfItsKernelWithinTheBoundOfTheMap) {
  std::vector<std::int64_t> starts;
  for (int i = 0; i < 20; ++i) {
    const CommHandle made = span_with_op();
    clock_.advance(30'000);
    starts.push_back(clock_.now());
    run_kernel(made, 3 * kMsNs);
    clock_.advance(5 * kMsNs);
  }
  flush();
  const std::vector<Span> found = spans();
  ASSERT_EQ(found.size(), starts.size());
  const auto maps = test::collect(bytes_).clock_maps;
  ASSERT_EQ(maps.size(), 1u);
  EXPECT_EQ(maps[0].device_clock, "globaltimer");
  EXPECT_LE(maps[0].bound_ns, 50'000u);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].time_source, TimeSource::kNcclGlobaltimer);
    EXPECT_LE(std::abs(found[i].device_start - starts[i]), static_cast<std::int64_t>(maps[0].bound_ns));
    EXPECT_NEAR(static_cast<double>(found[i].device_end - found[i].device_start), 3e6, 3e3);
  }
  EXPECT_EQ(times_->host_only_spans(), 0u);
}

TEST_F(CommTimesTest, ASpanWaitsInItsRingUntilItsOpHasEndedAndThoseBehindItWithIt) {
  const CommHandle first = span_with_op();
  const CommHandle second = span_with_op();
  const CommHandle running = start_kernel(first);
  run_kernel(second, kMsNs);
  flush();
  EXPECT_TRUE(times_->look());
  EXPECT_TRUE(spans().empty());
  stop_kernel(running);
  flush();
  EXPECT_FALSE(times_->look());
  ASSERT_EQ(spans().size(), 2u);
  EXPECT_EQ(spans()[1].time_source, TimeSource::kNcclGlobaltimer);
}

TEST_F(CommTimesTest, AllOpsOfASpanCountFromTheFirstStartToTheLastStop) {
  const Token span = begin();
  const CommHandle group = tracker_.begin_group();
  std::vector<CommHandle> ops;
  for (int i = 0; i < 2; ++i) {
    CommOpFacts facts;
    facts.channel_count = 1;
    facts.asks_kernels = true;
    const CommHandle call = tracker_.begin_call(*recorder_, communicator_, group, false);
    ops.push_back(tracker_.begin_op(*recorder_, communicator_, call, facts));
    tracker_.end(*recorder_, ops.back());
    tracker_.end(*recorder_, call);
  }
  recorder_->end(span);
  run_kernel(ops[0], kMsNs);
  flush();
  EXPECT_TRUE(spans().empty()) << "the other one has not begun";
  clock_.advance(kMsNs);
  run_kernel(ops[1], kMsNs);
  flush();
  ASSERT_EQ(spans().size(), 1u);
  EXPECT_GT(spans()[0].device_end - spans()[0].device_start, 2 * kSecondNs);
}

TEST_F(CommTimesTest, NumbersOfOtherKindsAreOthers) {
  const CommHandle reduced = span_with_op(Kind::kGradsReduceScatter);
  const CommHandle gathered = span_with_op(Kind::kParamsAllGather);
  run_kernel(reduced, kMsNs);
  run_kernel(gathered, 7 * kMsNs);
  flush();
  ASSERT_EQ(spans().size(), 2u);
  EXPECT_EQ(spans()[0].comm_seq, spans()[1].comm_seq);
  EXPECT_NEAR(static_cast<double>(spans()[0].device_end - spans()[0].device_start), 1e6, 1e4);
  EXPECT_NEAR(static_cast<double>(spans()[1].device_end - spans()[1].device_start), 7e6, 1e4);
}

TEST_F(CommTimesTest, AHalfFullRingDoesNotWait) {
  const CommHandle hung = span_with_op();
  (void)start_kernel(hung);
  const std::uint32_t half = recorder_->arena().sizes().large_ring_spans / 2;
  for (std::uint32_t i = 0; i < half; ++i) recorder_->end(recorder_->begin(Kind::kUser));
  flush();
  ASSERT_EQ(spans().size(), 1u);
  EXPECT_EQ(spans()[0].time_source, TimeSource::kHost);
  EXPECT_EQ(times_->host_only_spans(), 1u);
}

TEST_F(CommTimesTest, NobodyWaitsLongerThanAMinuteNorAtTheEnd) {
  (void)span_with_op();
  flush();
  EXPECT_TRUE(spans().empty());
  clock_.advance(CommTimes::kGiveUpNs);
  flush();
  EXPECT_EQ(spans().size(), 1u);
  (void)span_with_op();
  flush(true);
  EXPECT_EQ(spans().size(), 2u);
  EXPECT_EQ(times_->host_only_spans(), 2u);
}

TEST_F(CommTimesTest, ATimeThatCannotBeTrueLeavesTheSpanWhatItHas) {
  const CommHandle made = span_with_op();
  const CommHandle kernel = start_kernel(made);
  tracker_.kernel_stopped(*recorder_, kernel, 5);
  tracker_.end(*recorder_, kernel);
  EXPECT_EQ(tracker_.begin_kernel(*recorder_, communicator_, span_with_op(), 0, 0), 0u);
  flush();
  ASSERT_EQ(spans().size(), 2u);
  for (const Span& span : spans()) EXPECT_EQ(span.time_source, TimeSource::kHost);
  EXPECT_EQ(tracker_.counts().rejected_times, 2u);
  EXPECT_EQ(times_->host_only_spans(), 2u);
}

TEST_F(CommTimesTest, ALostStopOfAChannelThatNcclDidNotAnnounceDoesNotMatter) {
  const CommHandle made = span_with_op();
  run_kernel(made, kMsNs);
  const CommHandle second_channel = tracker_.begin_kernel(*recorder_, communicator_, made, 1, timer_now());
  flush();
  EXPECT_TRUE(spans().empty());
  stop_kernel(second_channel);
  flush();
  ASSERT_EQ(spans().size(), 1u);
  EXPECT_EQ(spans()[0].time_source, TimeSource::kNcclGlobaltimer);
}

TEST_F(CommTimesTest, OpsThatDoNotAskAndCapturedOnesAreNotWaitedFor) {
  for (const bool is_captured : {false, true}) {
    const Token span = begin();
    const CommHandle made = op(is_captured, is_captured);
    recorder_->end(span);
    EXPECT_EQ(start_kernel(made) != 0, is_captured) << "another plug-in may have asked for it";
  }
  flush();
  ASSERT_EQ(spans().size(), 2u);
  for (const Span& span : spans()) EXPECT_EQ(span.time_source, TimeSource::kHost);
  EXPECT_EQ(times_->host_only_spans(), 0u);
}

TEST_F(CommTimesTest, WhatCameBeforeTheRecordingIsAnothers) {
  (void)span_with_op();
  CommTimes later(&find_tracker, clock_.clock(), converter_, *resolver_);
  EXPECT_FALSE(later.look());
}

}  // namespace
}  // namespace smon_rt
