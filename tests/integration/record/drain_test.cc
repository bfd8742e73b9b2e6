// The drain thread with real producers, in one process, so that ThreadSanitizer sees both sides.

#include "record/drain.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "record/reporter.h"
#include "record/watchdog.h"
#include "record_process.h"

namespace smon_rt {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

class DrainTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "smon-drain-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    RecorderOptions options;
    options.arena.run_id = "drain" + std::to_string(::getpid()) + pattern.substr(pattern.size() - 6);
    options.sampling.sample_ratio = 1;
    auto recorder = Recorder::create(options);
    ASSERT_TRUE(recorder) << recorder.error().message;
    recorder_ = std::move(*recorder);
    TraceFileOptions file;
    file.directory = directory_.string();
    sink_ = std::make_unique<TraceSink>(file, recorder_->interner());
    ASSERT_TRUE(sink_->open({}));
    drain_ = std::make_unique<Drain>(*recorder_, *sink_, timer_);
    ASSERT_TRUE(drain_->start());
    recorder_->resume();
  }
  void TearDown() override {
    recorder_->close();
    std::filesystem::remove_all(directory_);
  }
  void stop() {
    recorder_->pause();
    drain_->request_stop("stop");
    ASSERT_TRUE(drain_->join_until(steady_clock::now() + seconds(60)));
  }

  std::filesystem::path directory_;
  NullGpuTimer timer_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<TraceSink> sink_;
  std::unique_ptr<Drain> drain_;
};

TEST_F(DrainTest, EverySpanOfFourThreadsIsWrittenOnceAndInOrder) {
  constexpr int kThreads = 4;
  constexpr int kSpans = 100'000;
  Watchdog watchdog(recorder_->header(), {.every = std::chrono::milliseconds(1)});
  ASSERT_TRUE(watchdog.start());
  ReporterOptions reporter_options;
  reporter_options.directory = directory_.string();
  reporter_options.snapshot_every = std::chrono::milliseconds(1);
  Reporter reporter(*recorder_, *drain_, reporter_options);
  ASSERT_TRUE(reporter.start());
  std::vector<std::thread> producers;
  for (int thread = 0; thread < kThreads; ++thread) {
    producers.emplace_back([&, thread] {
      for (int i = 0; i < kSpans; ++i) {
        SpanIds ids;
        ids.microbatch = static_cast<std::int16_t>(thread);
        ids.track_id = static_cast<std::uint16_t>(1 + i % 60'000);
        recorder_->end(recorder_->begin(Kind::kForwardCompute, ids));
        // Bursts of half a small ring; the drain thread may have one processor in two.
        if (i % 256 == 255) std::this_thread::sleep_for(std::chrono::microseconds(200));
        if (i % 10'000 == 0) drain_->status();
      }
    });
  }
  for (int step = 0; step < 1000; ++step) {
    recorder_->step_begin(-1);
    recorder_->interner().name("name " + std::to_string(step % 100));
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  for (std::thread& producer : producers) producer.join();
  reporter.request_stop();
  watchdog.request_stop();
  EXPECT_TRUE(reporter.join_until(steady_clock::now() + seconds(60)));
  EXPECT_TRUE(watchdog.join_until(steady_clock::now() + seconds(60)));
  const std::uint64_t recorded = recorder_->recorded_spans();
  const std::uint64_t dropped =
      recorder_->header().losses.dropped_by_kind[static_cast<std::size_t>(Kind::kForwardCompute)].load();
  stop();

  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.spans.size(), recorded);
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  EXPECT_EQ(trace.names.size(), 100u);
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_EQ(drain_->status().written_spans, recorded);
  // The last one is open.
  EXPECT_EQ(trace.step_times.size(), 999u);
  EXPECT_EQ(trace.count(Kind::kForwardCompute) + dropped, std::size_t{kThreads} * kSpans);
  std::vector<std::int64_t> last_start(kThreads, 0);
  for (const auto& [at, span] : trace.spans) {
    if (span.kind != Kind::kForwardCompute) continue;
    EXPECT_GE(span.start, last_start[static_cast<std::size_t>(span.microbatch)]);
    EXPECT_GE(span.end, span.start);
    last_start[static_cast<std::size_t>(span.microbatch)] = span.start;
  }
}

TEST(DrainClockTest, TheFirstSpansAreOnTheirScaleToo) {
  // A counter of 3 ticks a ns: what is written soon after the start lies at its time, not at three times it.
  const Clock clock({.read_ticks = [](void*) { return 3 * monotonic_ns(); },
                     .read =
                         [](void*) {
                           const std::int64_t now_ns = monotonic_ns();
                           return ClockReading{3 * now_ns, now_ns, now_ns, 0};
                         }});
  for (int turn = 0; turn < 50; ++turn) {
    std::string directory = (std::filesystem::temp_directory_path() / "smon-drain-XXXXXX").string();
    ASSERT_NE(::mkdtemp(directory.data()), nullptr);
    RecorderOptions options;
    options.arena.run_id = "clock" + directory.substr(directory.size() - 6);
    options.sampling.sample_ratio = 1;
    options.clock = &clock;
    auto recorder = Recorder::create(options);
    ASSERT_TRUE(recorder) << recorder.error().message;
    TraceSink sink({.directory = directory}, (*recorder)->interner());
    ASSERT_TRUE(sink.open({}));
    NullGpuTimer timer;
    const std::int64_t began_ns = monotonic_ns();
    Drain drain(**recorder, sink, timer);
    ASSERT_TRUE(drain.start());
    (*recorder)->resume();
    (*recorder)->step_begin(0);
    for (int span = 0; span < 3000; ++span) (*recorder)->end((*recorder)->begin(Kind::kForwardCompute, {}));
    (*recorder)->step_end();
    (*recorder)->pause();
    drain.request_stop("stop");
    ASSERT_TRUE(drain.join_until(steady_clock::now() + seconds(60)));
    const std::int64_t ended_ns = monotonic_ns();
    const RecordedTrace trace = read_traces(directory);
    (*recorder)->close();
    std::filesystem::remove_all(directory);
    ASSERT_GT(trace.spans.size(), 1000u);
    std::int64_t last_start = 0;
    for (const auto& [at, span] : trace.spans) {
      if (span.kind != Kind::kForwardCompute) continue;
      ASSERT_GE(span.start, std::max(began_ns, last_start)) << turn;
      ASSERT_LE(span.end, ended_ns) << turn;
      last_start = span.start;
    }
    for (const StepTime& step : trace.step_times) {
      ASSERT_GE(step.start_ns, began_ns);
      ASSERT_LE(step.start_ns + static_cast<std::int64_t>(step.duration_ns), ended_ns);
    }
  }
}

TEST_F(DrainTest, AChangedIdentityIsWrittenAgain) {
  TraceIdentity identity;
  identity.layout.stage = 3;
  identity.layout.pp_size = 4;
  drain_->set_identity(identity);
  stop();
  const RecordedTrace trace = read_traces(directory_);
  ASSERT_EQ(trace.identities.size(), 2u);
  EXPECT_EQ(trace.identities[1].layout.stage, 3);
}

TEST_F(DrainTest, AStopIsHeardInTheLongestSleep) {
  stop();
  const auto long_ago = std::chrono::hours(1);
  for (const bool is_quiet : {false, true}) {
    TraceSink sink({.directory = directory_.string(), .attempt = is_quiet ? 2U : 1U}, recorder_->interner());
    ASSERT_TRUE(sink.open({}));
    Drain drain(*recorder_, sink, timer_, {.pace = {.shortest = long_ago, .cautious = long_ago, .longest = long_ago}});
    const std::int64_t before_ns = monotonic_ns();
    ASSERT_TRUE(drain.start());
    const auto deadline = steady_clock::now() + seconds(30);
    while (recorder_->header().drain_beat_ns.load() < before_ns && steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
    if (is_quiet) {
      drain.request_stop_quietly();  // as an exit handler does
    } else {
      drain.request_stop("stop");
    }
    EXPECT_TRUE(drain.join_until(steady_clock::now() + seconds(60))) << is_quiet;
  }
}

TEST_F(DrainTest, TheArenaNamesTheFile) {
  EXPECT_EQ(recorder_->header().trace_file, drain_->status().file_path);
  EXPECT_NE(drain_->status().file_path, "");
  stop();
}

TEST_F(DrainTest, TheThreadBeats) {
  const auto deadline = steady_clock::now() + seconds(30);
  const std::int64_t first = monotonic_ns();
  while (recorder_->header().drain_beat_ns.load() < first && steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_GE(recorder_->header().drain_beat_ns.load(), first);
  stop();
}

}  // namespace
}  // namespace smon_rt
