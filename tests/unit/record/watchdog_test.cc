#include "record/watchdog.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace smon_rt {
namespace {

constexpr std::int64_t kMs = 1'000'000;

TEST(Watchdog, ABeatShowsInTheHeader) {
  ArenaHeader header;
  Watchdog watchdog(header);
  watchdog.beat(5 * kMs);
  EXPECT_EQ(header.watchdog_beat_ns.load(), 5 * kMs);
  EXPECT_EQ(watchdog.counters().beats, 1u);
}

TEST(Watchdog, KeepsTheLongestGapOfItself) {
  ArenaHeader header;
  Watchdog watchdog(header);
  for (const std::int64_t time_ms : {1000, 1200, 4200, 4400}) watchdog.beat(time_ms * kMs);
  EXPECT_EQ(watchdog.counters().longest_gap_ns, 3000 * kMs);
}

TEST(Watchdog, SeesThatTheDrainThreadStandsStill) {
  ArenaHeader header;
  Watchdog watchdog(header);
  watchdog.beat(1000 * kMs);
  EXPECT_EQ(watchdog.counters().longest_drain_gap_ns, 0) << "it has not begun";
  header.drain_beat_ns = 1000 * kMs;
  watchdog.beat(9000 * kMs);
  header.drain_beat_ns = 9000 * kMs;
  watchdog.beat(9200 * kMs);
  EXPECT_EQ(watchdog.counters().longest_drain_gap_ns, 8000 * kMs);
  EXPECT_EQ(watchdog.counters().longest_reporter_gap_ns, 0);
}

TEST(Watchdog, SeesWhenTheStepChangedLast) {
  ArenaHeader header;
  Watchdog watchdog(header);
  watchdog.beat(1 * kMs);
  EXPECT_EQ(watchdog.counters().last_step_change_ns, 0);
  header.step = 7;
  watchdog.beat(2 * kMs);
  watchdog.beat(3 * kMs);
  EXPECT_EQ(watchdog.counters().last_step_change_ns, 2 * kMs);
}

TEST(Watchdog, ItsThreadBeatsAndStops) {
  ArenaHeader header;
  Watchdog watchdog(header, {.every = std::chrono::microseconds(100)});
  ASSERT_TRUE(watchdog.start());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (watchdog.counters().beats < 3 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_GE(watchdog.counters().beats, 3u);
  watchdog.request_stop();
  EXPECT_TRUE(watchdog.join_until(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
}

}  // namespace
}  // namespace smon_rt
