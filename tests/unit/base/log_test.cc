#include "base/log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <future>
#include <stdexcept>
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

/// A pipe in the place of standard error.
class PipeAsStderr {
 public:
  PipeAsStderr() : before_(::dup(STDERR_FILENO)) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    reader_ = ends[0];
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[1]);
  }
  ~PipeAsStderr() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
    close_reader();
  }
  PipeAsStderr(const PipeAsStderr&) = delete;
  PipeAsStderr& operator=(const PipeAsStderr&) = delete;

  void fill(bool stays_nonblocking = false) {
    ::fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
    while (::write(STDERR_FILENO, "x", 1) == 1) {
    }
    if (!stays_nonblocking) ::fcntl(STDERR_FILENO, F_SETFL, 0);
  }
  std::string read_all() {
    ::fcntl(reader_, F_SETFL, O_NONBLOCK);
    std::string all;
    char piece[4096];
    for (ssize_t size; (size = ::read(reader_, piece, sizeof piece)) > 0;) {
      all.append(piece, static_cast<std::size_t>(size));
    }
    return all;
  }
  void close_reader() {
    if (reader_ >= 0) ::close(reader_);
    reader_ = -1;
  }

 private:
  int before_;
  int reader_ = -1;
};

TEST(Log, AFullPipeHoldsNobodyUpAndTheNextLineSaysWhatIsMissing) {
  for (const bool is_nonblocking : {false, true}) {
    PipeAsStderr pipe;
    pipe.fill(is_nonblocking);
    const auto done = std::async(std::launch::async, [] {
      for (int i = 0; i < 3; ++i) log(LogLevel::kWarning, "dropped");
    });
    EXPECT_EQ(done.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    EXPECT_EQ(pipe.read_all().find("dropped"), std::string::npos);
    log(LogLevel::kWarning, "there again");
    EXPECT_EQ(pipe.read_all(),
              "smon_rt: warning: 3 lines before this were dropped: standard error took no more\n"
              "smon_rt: warning: there again\n");
    log(LogLevel::kWarning, "as ever");
    EXPECT_EQ(pipe.read_all(), "smon_rt: warning: as ever\n");
  }
}

TEST(Log, APipeWithoutAReaderRaisesNoSignalAndAClosedOneIsNoError) {
  {
    PipeAsStderr pipe;
    pipe.close_reader();
    log(LogLevel::kWarning, "to nobody");
  }
  {
    PipeAsStderr pipe;
    ::close(STDERR_FILENO);
    errno = 7;
    log(LogLevel::kWarning, "to nowhere");
    EXPECT_EQ(errno, 7);
  }
  EXPECT_EQ(logged(LogLevel::kWarning, "here"),
            "smon_rt: warning: 2 lines before this were dropped: standard error took no more\n"
            "smon_rt: warning: here\n");
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
