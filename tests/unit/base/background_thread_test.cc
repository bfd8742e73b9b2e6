#include "base/background_thread.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>

namespace smon_rt {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

TEST(BackgroundThread, RunsNamedWithEverySignalBlocked) {
  BackgroundThread thread("smon_test");
  sigset_t mask;
  sigemptyset(&mask);
  char name[16] = {};
  ASSERT_TRUE(thread.start([&] {
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    pthread_getname_np(pthread_self(), name, sizeof name);
  }));
  ASSERT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
  EXPECT_STREQ(name, "smon_test");
  for (const int signal : {SIGTERM, SIGINT, SIGXFSZ, SIGCHLD, SIGUSR1}) EXPECT_EQ(sigismember(&mask, signal), 1);
}

TEST(BackgroundThread, TheMakersSignalMaskStaysAsItWas) {
  sigset_t before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  BackgroundThread thread("smon_test");
  ASSERT_TRUE(thread.start([] {}));
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) EXPECT_EQ(sigismember(&before, signal), sigismember(&after, signal));
  EXPECT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
}

TEST(BackgroundThread, AStopEndsAWait) {
  BackgroundThread thread("smon_test");
  ASSERT_TRUE(thread.start([&] {
    while (!thread.is_stop_requested()) thread.wait_for(hours(1));
  }));
  thread.request_stop();
  EXPECT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
  EXPECT_TRUE(thread.has_ended());
}

TEST(BackgroundThread, AWakeEndsAWaitEvenIfItCameFirst) {
  BackgroundThread thread("smon_test");
  thread.wake();
  ASSERT_TRUE(thread.start([&] { thread.wait_for(hours(1)); }));
  EXPECT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
}

TEST(BackgroundThread, KeepsWhatTheBodyThrows) {
  BackgroundThread thread("smon_test");
  ASSERT_TRUE(thread.start([] { throw std::runtime_error("no memory"); }));
  ASSERT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
  EXPECT_EQ(thread.failure(), "smon_test ended: no memory");
}

TEST(BackgroundThread, AJoinGivesUpAtItsDeadline) {
  BackgroundThread thread("smon_test");
  std::atomic<bool> may_end{false};
  ASSERT_TRUE(thread.start([&] {
    while (!may_end.load()) thread.wait_for(milliseconds(1));
  }));
  EXPECT_FALSE(thread.join_until(steady_clock::now() + milliseconds(5)));
  may_end.store(true);
  EXPECT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
}

TEST(BackgroundThread, PublishesItsProcessorTime) {
  BackgroundThread thread("smon_test");
  ASSERT_TRUE(thread.start([&] {
    const auto until = steady_clock::now() + milliseconds(20);
    while (steady_clock::now() < until) {
    }
  }));
  ASSERT_TRUE(thread.join_until(steady_clock::now() + seconds(10)));
  EXPECT_GT(thread.cpu_ns(), 0u);
}

TEST(BackgroundThread, RunsWorkToItsEndApart) {
  bool is_blocked = false;
  run_with_signals_blocked([&] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    is_blocked = sigismember(&mask, SIGXFSZ) == 1;
  });
  EXPECT_TRUE(is_blocked);
}

}  // namespace
}  // namespace smon_rt
