// Counts what the hot path allocates, by standing in for malloc and its relatives in this program, and runs it where
// every system call but a few is death.

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "record/recorder.h"
#include "recorder_fixture.h"

namespace {
std::atomic<std::uint64_t> g_allocations{0};
}  // namespace

extern "C" {
void* __libc_malloc(std::size_t size);
void* __libc_calloc(std::size_t count, std::size_t size);
void* __libc_realloc(void* memory, std::size_t size);
void* __libc_memalign(std::size_t alignment, std::size_t size);

void* malloc(std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size);
}
void* calloc(std::size_t count, std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_calloc(count, size);
}
void* realloc(void* memory, std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_realloc(memory, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return __libc_memalign(alignment, size);
}
}

namespace smon_rt {
namespace {

TEST(RecorderAllocation, TheCounterCounts) {
  const std::uint64_t before = g_allocations.load();
  const std::vector<int> some(1000);
  EXPECT_GT(g_allocations.load(), before);
}

void record_everything(Recorder& recorder, std::uint16_t comm_id) {
  for (int step = 0; step < 100; ++step) {
    recorder.step_begin(step);
    for (int i = 0; i < 100; ++i) {
      const Token outer = recorder.begin(Kind::kForwardCompute, {.microbatch = static_cast<std::int16_t>(i)});
      const Token inner = recorder.begin(Kind::kForwardSend, {.comm_id = comm_id, .peer = i});
      recorder.annotate(recorder.current(), {.payload_bytes = 100});
      recorder.end(inner);
      recorder.end(inner);
      recorder.abort(outer);
      recorder.end(~Token{0});
      recorder.metric(1, 0.5);
    }
  }
  recorder.step_end();
}

TEST(RecorderAllocation, TheHotPathAllocatesNothingInAnyState) {
  for (const double ratio : {0.0, 0.5, 1.0}) {
    RecorderOptions options = testing::every_step_sampled();
    options.sampling.sample_ratio = ratio;
    const auto recorder = testing::make_recorder(options);
    const std::vector<std::int32_t> members = {0, 1};
    const std::uint16_t comm_id = recorder->register_communicator("pp", "pp", members);
    recorder->end(recorder->begin(Kind::kUser));  // the thread gets its ring
    for (const bool is_paused : {false, true}) {
      if (is_paused) recorder->pause();
      const std::uint64_t before = g_allocations.load();
      record_everything(*recorder, comm_id);
      EXPECT_EQ(g_allocations.load(), before) << "ratio " << ratio << ", paused " << is_paused;
    }
  }
}

/// From here on every system call but exit ends the process. Not seccomp's strict mode, which forbids to read the time
/// stamp counter as well.
bool forbid_system_calls() {
  std::array<sock_filter, 4> program = {{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL),
  }};
  const sock_fprog filter{static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

TEST(RecorderAllocation, TheHotPathMakesNoSystemCall) {
  if (!Clock::host().has_counter()) GTEST_SKIP() << "the clock of this machine may be a system call";
  const pid_t pid = ::fork();
  if (pid == 0) {
    RecorderOptions options = testing::every_step_sampled();
    options.arena.directory.clear();      // nothing is left behind by a process that ends here
    options.sampling.sample_ratio = 0.5;  // both ways through each call
    const auto recorder = testing::make_recorder(options);
    const std::vector<std::int32_t> members = {0, 1};
    const std::uint16_t comm_id = recorder->register_communicator("pp", "pp", members);
    recorder->end(recorder->begin(Kind::kUser));
    if (!forbid_system_calls()) ::_exit(77);
    record_everything(*recorder, comm_id);
    ::syscall(SYS_exit, 0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFEXITED(status)) << "killed by signal " << WTERMSIG(status);
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "this machine has no seccomp";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace smon_rt
