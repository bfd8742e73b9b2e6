#include "base/log.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace smon_rt {
namespace {

std::string logged(LogLevel level, std::string_view message) {
  ::testing::internal::CaptureStderr();
  log(level, message);
  return ::testing::internal::GetCapturedStderr();
}

TEST(Log, WritesOneLineWithItsLevel) {
  EXPECT_EQ(logged(LogLevel::kWarning, "the disk is full"), "smon_rt: warning: the disk is full\n");
}

TEST(Log, LeavesOutWhatIsLessImportantThanTheLevel) {
  set_log_level(LogLevel::kError);
  EXPECT_EQ(logged(LogLevel::kWarning, "x"), "");
  EXPECT_EQ(logged(LogLevel::kError, "x"), "smon_rt: error: x\n");
  set_log_level(LogLevel::kOff);
  EXPECT_EQ(logged(LogLevel::kError, "x"), "");
  EXPECT_EQ(logged(LogLevel::kOff, "x"), "");
  set_log_level(LogLevel::kWarning);
}

TEST(Log, CutsALongMessageAndStillEndsTheLine) {
  const std::string line = logged(LogLevel::kError, std::string(100'000, 'x'));
  EXPECT_EQ(line.size(), 1000u);
  EXPECT_EQ(line.back(), '\n');
}

TEST(Log, LevelsHaveNames) {
  EXPECT_EQ(parse_log_level("debug"), LogLevel::kDebug);
  EXPECT_EQ(parse_log_level("off"), LogLevel::kOff);
  EXPECT_EQ(parse_log_level("Warning"), std::nullopt);
  EXPECT_EQ(parse_log_level(""), std::nullopt);
}

TEST(LogLimiter, LetsOneThroughInEachIntervalAndCountsTheOthers) {
  LogLimiter limiter(1000);
  EXPECT_TRUE(limiter.may_log(500));
  EXPECT_FALSE(limiter.may_log(600));
  EXPECT_FALSE(limiter.may_log(1499));
  EXPECT_TRUE(limiter.may_log(1500));
  EXPECT_EQ(limiter.take_suppressed(), 2u);
  EXPECT_EQ(limiter.take_suppressed(), 0u);
}

TEST(LogLimiter, OfManyThreadsOneGetsThrough) {
  LogLimiter limiter;
  std::atomic<int> passed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 1000; ++k) passed += limiter.may_log(1) ? 1 : 0;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(passed, 1);
  EXPECT_EQ(limiter.take_suppressed(), 7999u);
}

}  // namespace
}  // namespace smon_rt
