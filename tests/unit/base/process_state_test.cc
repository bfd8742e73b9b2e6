#include "base/process_state.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>

namespace smon_rt {
namespace {

/// What a forked child found, as its exit code.
template <typename InChild>
int in_child(InChild child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ProcessState, RecordingIsOffUntilItIsSwitchedOn) {
  EXPECT_FALSE(is_recording());
  set_recording_state(RecordingState::kRecording);
  EXPECT_TRUE(is_recording());
  set_recording_state(RecordingState::kPaused);
  EXPECT_FALSE(is_recording());
  EXPECT_EQ(recording_state(), RecordingState::kPaused);
  set_recording_state(RecordingState::kOff);
}

TEST(ProcessState, AForkedChildDoesNotRecordAndItsParentGoesOn) {
  set_recording_state(RecordingState::kRecording);
  EXPECT_EQ(in_child([] { return recording_state() == RecordingState::kOff ? 0 : 1; }), 0);
  EXPECT_TRUE(is_recording());
  set_recording_state(RecordingState::kOff);
}

TEST(ProcessState, HandlersRunInTheChildOnlyBeforeForkReturns) {
  static int calls = 0;
  ASSERT_TRUE(at_fork_in_child([] { ++calls; }));
  EXPECT_EQ(in_child([] { return calls; }), 1);
  EXPECT_EQ(calls, 0);
}

TEST(ProcessState, ForksAreCounted) {
  static const std::uint32_t mine = fork_count();
  EXPECT_EQ(in_child([] {
              const int first = fork_count() == mine + 1 ? 0 : 1;
              return first + in_child([] { return fork_count() == mine + 2 ? 0 : 2; });
            }),
            0);
  EXPECT_EQ(fork_count(), mine);
}

TEST(ProcessState, MoreHandlersThanThereIsRoomForAreRefused) {
  int accepted = 0;
  while (accepted < 100 && at_fork_in_child([] {})) ++accepted;
  EXPECT_LE(accepted, 8);
}

TEST(ProcessState, AProcessIsKnownByPidAndStartTime) {
  const auto start = process_start_ticks(::getpid());
  ASSERT_TRUE(start.has_value());
  EXPECT_TRUE(is_process_alive(::getpid(), *start));
  EXPECT_FALSE(is_process_alive(::getpid(), *start + 1)) << "another process with a pid used again";
}

TEST(ProcessState, ADeadProcessIsNotAlive) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::pause();
    ::_exit(0);
  }
  const auto start = process_start_ticks(pid);
  ASSERT_TRUE(start.has_value());
  EXPECT_TRUE(is_process_alive(pid, *start));
  ::kill(pid, SIGKILL);
  siginfo_t info;
  ::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  EXPECT_FALSE(is_process_alive(pid, *start)) << "a zombie";
  ::waitpid(pid, nullptr, 0);
  EXPECT_FALSE(is_process_alive(pid, *start));
  EXPECT_EQ(process_start_ticks(-1), std::nullopt);
}

TEST(ProcessState, AThreadHasAnIdAndAName) {
  EXPECT_EQ(current_thread_id(), ::getpid());
  std::thread([] {
    ::pthread_setname_np(::pthread_self(), "pt_autograd_0");
    char name[16] = {};
    current_thread_name(name, sizeof(name));
    EXPECT_STREQ(name, "pt_autograd_0");
    char cut[4] = {};
    current_thread_name(cut, sizeof(cut));
    EXPECT_STREQ(cut, "pt_");
    EXPECT_NE(current_thread_id(), ::getpid());
  }).join();
}

TEST(ProcessState, TheMachineIsKnown) {
  EXPECT_FALSE(host_name().empty());
  EXPECT_EQ(boot_id().size(), 36u);
}

}  // namespace
}  // namespace smon_rt
