// The recorder with CUDA's timer, as threads of a job and the drain thread use the two at the same time.

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "cuda/cuda_timer.h"
#include "fakes/fake_libcuda.h"
#include "record/recorder.h"
#include "unit/record/recorder_fixture.h"

namespace smon_rt {
namespace {

constexpr std::size_t kEvents = 64;

/// Takes spans and gives their events back, as the drain thread does, until it is told to end; how many had events.
std::size_t drain(Recorder& recorder, GpuTimer& timer, testing::RingReader& rings, const std::atomic<bool>& is_over) {
  std::size_t on_gpu = 0;
  for (bool is_last = false; !is_last;) {
    is_last = is_over.load();
    recorder.gpu_spans()->serve();
    for (const Span& span : rings.take()) {
      if (span.time_source != TimeSource::kGpuEvent) continue;
      ++on_gpu;
      EXPECT_NE(timer.query(span.device_start), EventState::kFailed);
      EXPECT_NE(timer.query(span.device_end), EventState::kFailed);
      timer.release(span.device_start);
      timer.release(span.device_end);
    }
    std::this_thread::yield();
  }
  return on_gpu;
}

TEST(RecorderWithCuda, ThreadsThatShareAndDropEventsLoseNone) {
  constexpr int kThreads = 3, kSpans = 5'000;
  fake_cuda_reset();
  const auto driver = cuda::load_driver(FAKE_LIBCUDA);
  ASSERT_TRUE(driver);
  cuda::CudaTimer timer(*driver, {.events_per_context = kEvents, .torch_library = FAKE_LIBCUDA});
  void* context = fake_cuda_make_context(0);
  RecorderOptions options = testing::every_step_sampled();
  options.gpu_timer = &timer;
  const auto recorder = testing::make_recorder(options);
  ASSERT_NE(recorder, nullptr);
  testing::RingReader rings(recorder->arena());

  std::atomic<bool> is_over{false};
  std::size_t on_gpu = 0;
  std::thread drainer([&] { on_gpu = drain(*recorder, timer, rings, is_over); });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      fake_cuda_set_current(context);
      // Until the drain thread has made the events: before that spans are the host's.
      for (Token first = 0; (first & kOnGpu) == 0; std::this_thread::yield()) {
        first = recorder->begin(Kind::kOptimizer);
        recorder->end(first);
      }
      for (int k = 0; k < kSpans; ++k) {
        const Token token = recorder->begin(k % 2 == 0 ? Kind::kForwardCompute : Kind::kBackwardCompute);
        std::int64_t ended = 0;
        if (k % 3 == i) ended = recorder->mark_end(token);
        recorder->end_at(token, k % 2 == 0 ? ended : 0, TimeSource::kHost, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_over = true;
  drainer.join();
  EXPECT_GT(on_gpu, 0u);

  fake_cuda_set_current(context);
  std::size_t free = 0;
  while (timer.record(0) != kNoEvent) ++free;
  EXPECT_EQ(free, kEvents) << "every event has come back";
}

}  // namespace
}  // namespace smon_rt
