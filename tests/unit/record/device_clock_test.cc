#include "record/device_clock.h"

#include <gtest/gtest.h>

#include <cstdint>

#include "fakes/fake_gpu_timer.h"

namespace smon_rt {
namespace {

constexpr std::int64_t kMsNs = 1'000'000;

class DeviceClockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    timer_.set_context(1);
    timer_.set_device(1, 4);
    ASSERT_TRUE(timer_.adopt(1));
    timer_.finish(INT64_MAX);
  }
  EventSlot event_at(std::int64_t device_ns) {
    timer_.set_device_time(device_ns);
    return timer_.record(0);
  }
  /// Its host's clock is ahead by a second.
  std::optional<std::int64_t> note(EventSlot slot, std::int64_t device_ns) {
    const std::int64_t host_ns = device_ns + 1'000 * kMsNs;
    return clock().note(slot, {.recorded_ns = host_ns - 5000, .ready_ns = host_ns + 5000});
  }
  DeviceClock& clock() {
    if (!clock_) clock_.emplace(timer_, 1);
    return *clock_;
  }

  FakeGpuTimer timer_{16};
  std::optional<DeviceClock> clock_;
};

TEST_F(DeviceClockTest, EventsGetTimesOfOneClockHoweverFarApart) {
  for (std::int64_t device_ns = 5 * kMsNs; device_ns < 20'000 * kMsNs; device_ns += 300 * kMsNs) {
    const EventSlot slot = event_at(device_ns);
    EXPECT_EQ(note(slot, device_ns), device_ns - 5 * kMsNs);
    clock().release(slot);
    EXPECT_LE(timer_.used_count(), 2u) << "one is kept";
  }
  const auto line = clock().line(10'000 * kMsNs, 19'000 * kMsNs);
  ASSERT_TRUE(line);
  EXPECT_NEAR(static_cast<double>(line->to_host_ns(10'000 * kMsNs)), 11'005e6, static_cast<double>(line->bound_ns));
  EXPECT_LE(line->bound_ns, 15'000u);
  const TraceClockMap map = clock().packet(*line, 10'000 * kMsNs, 19'000 * kMsNs);
  EXPECT_EQ(map.device, 4);
  EXPECT_EQ(map.gpu_uuid, "GPU-fake-4");
  EXPECT_EQ(map.device_clock, "event");
  EXPECT_NEAR(static_cast<double>(map.window_end_ns), 20'005e6, 15e3);
  EXPECT_NEAR(map.offset_ns + map.drift_ratio * 19'000e6, static_cast<double>(map.window_end_ns), 1);
}

TEST_F(DeviceClockTest, TheEventThatOthersAreComparedWithIsKeptAfterItsLastOwnerGaveItBack) {
  const EventSlot first = event_at(0);
  ASSERT_TRUE(timer_.retain(first));
  note(first, 0);
  clock().release(first);
  clock().release(first);
  EXPECT_EQ(timer_.used_count(), 1u);
  const EventSlot second = event_at(1'000 * kMsNs);
  EXPECT_EQ(note(second, 1'000 * kMsNs), 1'000 * kMsNs);
  EXPECT_EQ(timer_.used_count(), 1u) << "the second takes its place";
  clock().release(second);
  EXPECT_EQ(timer_.used_count(), 1u);
}

TEST_F(DeviceClockTest, WhereNothingCanBeComparedTheMapBeginsAnew) {
  const EventSlot first = event_at(0);
  note(first, 0);
  ASSERT_TRUE(clock().line(0, 0));
  timer_.release(first);  // its context is gone, say
  EXPECT_FALSE(note(event_at(10 * kMsNs), 10 * kMsNs));
  EXPECT_EQ(clock().split_count(), 1u);
  EXPECT_FALSE(clock().line(0, 0));
  EXPECT_FALSE(clock().last_line());
  EXPECT_EQ(note(event_at(20 * kMsNs), 20 * kMsNs), 0);
  EXPECT_TRUE(clock().line(0, 0));
}

TEST(ElapsedQuantum, IsThatOfAFloatOfMilliseconds) {
  EXPECT_EQ(elapsed_quantum_ns(0), 1);
  EXPECT_EQ(elapsed_quantum_ns(1'000'000'000), 62);  // 2^-14 ms
  EXPECT_EQ(elapsed_quantum_ns(-1'000'000'000), 62);
  EXPECT_EQ(elapsed_quantum_ns(60'000'000'000), 3907);  // 2^-8 ms
}

}  // namespace
}  // namespace smon_rt
