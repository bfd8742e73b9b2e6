// Counts what the hot path allocates, by standing in for malloc and its relatives in this program.

#include <dlfcn.h>
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace smon_rt
