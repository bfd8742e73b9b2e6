// The drain thread with producers on a GPU, in one process, so that ThreadSanitizer sees both sides.

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "fakes/fake_gpu_timer.h"
#include "record/drain.h"
#include "record_process.h"

namespace smon_rt {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

/// A GPU whose clock is the host's, a second behind, and that is 3 ms late with everything. For several threads.
class LateGpu final : public GpuTimer {
 public:
  LateGpu() { timer_.set_context(42); }

  GpuContext current_context() noexcept override { return 42; }
  GpuStream current_stream(GpuContext) noexcept override { return 7; }
  CaptureState capture_state(GpuStream) noexcept override { return CaptureState::kNotCapturing; }
  EventSlot record(GpuStream stream) noexcept override {
    const std::lock_guard lock(mutex_);
    timer_.set_device_time(monotonic_ns() - kBehindNs);
    return timer_.record(stream);
  }
  bool retain(EventSlot slot) noexcept override {
    const std::lock_guard lock(mutex_);
    return timer_.retain(slot);
  }
  Result<void> adopt(GpuContext context) override {
    const std::lock_guard lock(mutex_);
    return timer_.adopt(context);
  }
  GpuContext context_of(EventSlot slot) noexcept override {
    const std::lock_guard lock(mutex_);
    return timer_.context_of(slot);
  }
  EventState query(EventSlot slot) noexcept override {
    const std::lock_guard lock(mutex_);
    timer_.finish(is_hung_ ? INT64_MIN : monotonic_ns() - kBehindNs - 3'000'000);
    return timer_.query(slot);
  }
  Result<std::int64_t> elapsed_ns(EventSlot from, EventSlot to) override {
    const std::lock_guard lock(mutex_);
    return timer_.elapsed_ns(from, to);
  }
  void release(EventSlot slot) noexcept override {
    const std::lock_guard lock(mutex_);
    timer_.release(slot);
  }

  void hang() {
    const std::lock_guard lock(mutex_);
    is_hung_ = true;
  }
  std::size_t used_count() {
    const std::lock_guard lock(mutex_);
    return timer_.used_count();
  }

 private:
  static constexpr std::int64_t kBehindNs = 1'000'000'000;
  std::mutex mutex_;
  FakeGpuTimer timer_{2048};
  bool is_hung_ = false;
};

class DrainGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "smon-drain-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    RecorderOptions options;
    options.arena.run_id = "gpu" + std::to_string(::getpid()) + pattern.substr(pattern.size() - 6);
    options.sampling.sample_ratio = 1;
    options.gpu_timer = &gpu_;
    auto recorder = Recorder::create(options);
    ASSERT_TRUE(recorder) << recorder.error().message;
    recorder_ = std::move(*recorder);
    TraceFileOptions file;
    file.directory = directory_.string();
    sink_ = std::make_unique<TraceSink>(file, recorder_->interner());
    ASSERT_TRUE(sink_->open({}));
    drain_ = std::make_unique<Drain>(*recorder_, *sink_, gpu_);
    ASSERT_TRUE(drain_->start());
    recorder_->resume();
  }
  void TearDown() override {
    recorder_->close();
    std::filesystem::remove_all(directory_);
  }

  void produce(int span_count) {
    for (int i = 0; i < span_count; ++i) {
      const Token token = recorder_->begin(Kind::kForwardCompute);
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      recorder_->end(token);
      recorder_->end(recorder_->begin(Kind::kUser));
    }
  }
  /// Until the drain thread has made events, and its clocks have been read for long enough.
  void warm_up() {
    const auto deadline = steady_clock::now() + seconds(60);
    while (gpu_.used_count() == 0 && steady_clock::now() < deadline) produce(1);
    ASSERT_GT(gpu_.used_count(), 0u);
    produce(200);
  }
  RecordedTrace stop(bool is_quiet = false) {
    recorder_->pause();
    if (is_quiet) {
      drain_->request_stop_quietly();
    } else {
      drain_->request_stop("stop");
    }
    EXPECT_TRUE(drain_->join_until(steady_clock::now() + seconds(60)));
    return read_traces(directory_);
  }
  static std::size_t count(const RecordedTrace& trace, TimeSource source) {
    std::size_t count = 0;
    for (const auto& [at, span] : trace.spans) {
      if (span.kind == Kind::kForwardCompute && span.time_source == source) ++count;
    }
    return count;
  }

  std::filesystem::path directory_;
  LateGpu gpu_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<TraceSink> sink_;
  std::unique_ptr<Drain> drain_;
};

TEST_F(DrainGpuTest, SpansOfTwoThreadsHaveTimesOfTheGpuOrAreCounted) {
  recorder_->step_begin(0);
  warm_up();
  std::vector<std::thread> producers;
  for (int thread = 0; thread < 2; ++thread) producers.emplace_back([this] { produce(500); });
  for (int step = 1; step < 20; ++step) {
    recorder_->step_begin(step);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (std::thread& producer : producers) producer.join();
  const RecordedTrace trace = stop();
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  EXPECT_GT(count(trace, TimeSource::kGpuEvent), 100u);
  EXPECT_EQ(count(trace, TimeSource::kHost), trace.losses.host_only_spans);
  for (const auto& [at, span] : trace.spans) {
    if (span.time_source != TimeSource::kGpuEvent) continue;
    // The truth: each event is recorded right after the host's own time.
    EXPECT_LE(span.device_start, span.device_end);
    EXPECT_GE(span.device_end, span.end - 1'000'000'000);
    EXPECT_LE(span.device_end, span.end + 1'000'000'000);
  }
  EXPECT_LE(gpu_.used_count(), 1u) << "but the one that others are compared with";
}

TEST_F(DrainGpuTest, AStopDoesNotWaitForAGpuThatHangs) {
  recorder_->step_begin(0);
  warm_up();
  gpu_.hang();
  produce(5);
  const RecordedTrace trace = stop();
  EXPECT_EQ(trace.ends, std::vector<std::string>{"stop"});
  EXPECT_GE(count(trace, TimeSource::kHost), 5u);
  EXPECT_EQ(count(trace, TimeSource::kHost), trace.losses.host_only_spans);
}

TEST_F(DrainGpuTest, AnExitLeavesTheDriverAlone) {
  recorder_->step_begin(0);
  warm_up();
  gpu_.hang();
  produce(5);
  const RecordedTrace trace = stop(true);
  EXPECT_GE(count(trace, TimeSource::kHost), 5u);
  EXPECT_GE(gpu_.used_count(), 10u) << "events are not even given back";
}

}  // namespace
}  // namespace smon_rt
