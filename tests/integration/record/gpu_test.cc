// A process that finds a driver, which stands in for NVIDIA's: device time there is the host's clock, and whoever calls
// it after its own exit handler has run is aborted.

#include <signal.h>

#include <cstdlib>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "record_process.h"

namespace smon_rt {
namespace {

class RecordGpuTest : public RecordTest {
 protected:
  static std::map<std::string, std::string> with_driver() {
    const char* libraries = std::getenv("LD_LIBRARY_PATH");
    return {
        {"LD_LIBRARY_PATH", std::string(FAKE_DRIVER_DIR) + (libraries != nullptr ? ":" + std::string(libraries) : "")},
        {"FAKE_CUDA_CONTEXT", "1"},
        {"SMON_RT_SAMPLE_RATIO", "1"}};
  }
  RecordProcess run(std::vector<std::string> arguments) {
    return RecordProcess(std::move(arguments), {}, with_driver());
  }

  /// Spans with times of the GPU, which must be on the host's line: that is the driver's clock here. How near is
  /// clock_map_test's matter; here a machine that has no time for us must not fail.
  std::size_t count_on_gpu(const RecordedTrace& trace) {
    constexpr std::int64_t kBoundNs = 1'000'000'000;
    std::size_t count = 0;
    for (const auto& [key, span] : trace.spans) {
      if (span.time_source != TimeSource::kGpuEvent) continue;
      ++count;
      EXPECT_GE(span.device_start, span.start - kBoundNs);
      EXPECT_LE(span.device_end, span.end + kBoundNs);
      EXPECT_GE(span.device_end, span.device_start);
    }
    return count;
  }
};

TEST_F(RecordGpuTest, ComputesHaveTimesOfTheGpuAndOtherSpansDoNot) {
  RecordProcess process = run({start(), "slow_steps:1000", "stop", "_exit:0"});
  EXPECT_EQ(process.read_line_with("stop="), "stop=0");
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_GT(count_on_gpu(trace), 0u);
  ASSERT_FALSE(trace.identities.empty());
  EXPECT_EQ(trace.identities.back().gpu_uuid, "GPU-b4000000-0000-0000-0000-000000000000") << "nobody told it";
  for (const auto& [key, span] : trace.spans) {
    if (span.kind == Kind::kStep) {
      EXPECT_EQ(span.time_source, TimeSource::kHost);
    }
  }
}

TEST_F(RecordGpuTest, AnExitLeavesTheDriverAlone) {
  for (const std::string how : {"exit:7", "return:7"}) {
    RecordProcess process = run({start(), "slow_steps:200", how});
    EXPECT_EQ(process.exit_code(), 7) << how;
  }
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.ends, (std::vector<std::string>{"exit", "exit"}));
  EXPECT_EQ(trace.step_times.size(), 400u);
  EXPECT_TRUE(trace.damage.empty());
}

TEST_F(RecordGpuTest, AKilledProcessLeavesSpansOfTheHost) {
  {
    RecordProcess process = run({start(), "slow_steps:200", "wait"});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    process.send(SIGKILL);
  }
  RecordProcess next({start(), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  count_on_gpu(trace);
}

}  // namespace
}  // namespace smon_rt
