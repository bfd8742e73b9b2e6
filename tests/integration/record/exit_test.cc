// Ways for a process to end without stop: its exit code stays, nothing hangs, the file is whole.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "record_process.h"

namespace smon_rt {
namespace {

using RecordExitTest = RecordTest;

// No test here asserts how long something took: what hangs, hangs for ever, and RecordProcess gives up after its own
// deadlines, without an exit code or a line.

TEST_F(RecordExitTest, StopWritesEverythingAndClosesTheFile) {
  RecordProcess process({start(), "steps:10", "stop", "status"});
  EXPECT_EQ(process.read_line_with("stop="), "stop=0");
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.count(Kind::kForwardCompute), 40u);
  EXPECT_EQ(trace.count(Kind::kOptimizer), 10u);
  EXPECT_EQ(trace.step_times.size(), 10u);
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  EXPECT_EQ(trace.ends, std::vector<std::string>{"stop"});
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_EQ(number_in(status, "written"), 60) << status;
  EXPECT_TRUE(arenas_of(run_id_).empty());
}

TEST_F(RecordExitTest, ExitFlushesAndKeepsTheExitCode) {
  for (const std::string how : {"exit:7", "return:7"}) {
    RecordProcess process({start(), "steps:10", how});
    EXPECT_EQ(process.exit_code(), 7) << how;
  }
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.files, 2u);
  EXPECT_EQ(trace.step_times.size(), 20u);
  EXPECT_EQ(trace.ends, (std::vector<std::string>{"exit", "exit"}));
  EXPECT_TRUE(arenas_of(run_id_).empty());
}

TEST_F(RecordExitTest, ExitRemovesTheLiveSnapshot) {
  for (const std::string how : {"exit:7", "return:7"}) {
    RecordProcess process({start(), "steps:10", "wait", how});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    ASSERT_TRUE(becomes_true([&] { return read_traces(directory_, ".live").files == 1; }));
    process.go_on();
    EXPECT_EQ(process.exit_code(), 7) << how;
    EXPECT_EQ(read_traces(directory_, ".live").files, 0u) << how;
    EXPECT_EQ(read_traces(directory_, ".tmp").files, 0u) << how;
  }
  for (int i = 0; i < 10; ++i) {  // while the first snapshot is on its way
    RecordProcess process({start(), "steps:1", "exit:7"});
    EXPECT_EQ(process.exit_code(), 7);
    EXPECT_EQ(read_traces(directory_, ".live").files, 0u);
  }
}

TEST_F(RecordExitTest, ExitWithOpenSpansWritesThemAsAborted) {
  RecordProcess process({start(), "open:1000", "exit:0"});
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  ASSERT_EQ(trace.open_spans.size(), 1000u);
  for (const Span& span : trace.open_spans) {
    EXPECT_EQ(span.kind, Kind::kBackwardCompute);
    EXPECT_TRUE(span.flags & span_flag::kAborted);
    EXPECT_GE(span.end, span.start);
  }
}

TEST_F(RecordExitTest, AnEndWithoutExitLeavesAReadableFile) {
  const std::pair<const char*, int> ways[] = {{"_exit:7", 7}, {"abort", -SIGABRT}, {"throw", -SIGABRT}};
  for (const auto& [how, code] : ways) {
    const std::string attempt = std::to_string(static_cast<int>(how[1]));
    RecordProcess process({start(",attempt=" + attempt), "steps:10", "sync", how});
    EXPECT_EQ(process.exit_code(), code) << how;
    const RecordedTrace trace = read_traces(directory_, "-" + attempt + ".smon");
    EXPECT_EQ(trace.files, 1u) << how;
    EXPECT_EQ(trace.count(Kind::kForwardCompute), 40u) << how;
    EXPECT_TRUE(trace.damage.empty()) << how;
    EXPECT_TRUE(trace.ends.empty()) << how;
  }
}

TEST_F(RecordExitTest, SigtermKillsAsItWouldWithoutUs) {
  RecordProcess process({start(), "steps:10", "sync", "wait"});
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  process.send(SIGTERM);
  EXPECT_EQ(process.exit_code(), -SIGTERM);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.count(Kind::kForwardCompute), 40u);
  EXPECT_TRUE(trace.damage.empty());
}

/// In a child: standard error is a pipe that nobody reads, and full.
bool fill_stderr() {
  int ends[2];
  if (::pipe(ends) != 0 || ::dup2(ends[1], STDERR_FILENO) < 0) return false;
  ::fcntl(STDERR_FILENO, F_SETFL, O_NONBLOCK);
  while (::write(STDERR_FILENO, "x", 1) == 1) {
  }
  return ::fcntl(STDERR_FILENO, F_SETFL, 0) == 0;
}

TEST_F(RecordExitTest, AFullStandardErrorHoldsNothingUp) {
  RecordProcess process({start(), "steps:10", "stop_timed", start(), "steps:10", "exit:3"}, fill_stderr,
                        {{"SMON_RT_LOG", "info"}, {"SMON_RT_SAMPLE_RATIO", "wrong"}});
  EXPECT_EQ(process.read_line(), "start=0");
  const std::string stop = process.read_line_with("stop=");
  EXPECT_EQ(number_in(stop, "stop"), 0) << stop;
  EXPECT_EQ(process.exit_code(), 3);
  EXPECT_EQ(read_traces(directory_).step_times.size(), 20u);
}

TEST_F(RecordExitTest, ADrainThatCannotWarnStillEnds) {
  const auto limit = [] {
    const rlimit bytes{20000, 20000};
    return ::setrlimit(RLIMIT_FSIZE, &bytes) == 0 && fill_stderr();
  };
  RecordProcess process({start(), "spans:20000", "file_error", "stop_timed", "exit:3"}, limit);
  const std::string stop = process.read_line_with("stop=");
  EXPECT_NE(number_in(stop, "stop"), 6) << stop;
  EXPECT_EQ(process.exit_code(), 3);
}

TEST_F(RecordExitTest, DisabledNothingIsThere) {
  RecordProcess process({start(), "steps:10", "status", "stop", "exit:3"}, nullptr, {{"SMON_RT_DISABLE", "1"}});
  EXPECT_EQ(process.read_line(), "start=1");
  const std::string status = process.read_line();
  EXPECT_EQ(number_in(status, "started"), 0);
  EXPECT_EQ(number_in(status, "recorded"), 0);
  EXPECT_EQ(process.exit_code(), 3);
  EXPECT_TRUE(std::filesystem::is_empty(directory_));
}

TEST_F(RecordExitTest, TheEnvironmentSaysWhereAndAsWhom) {
  RecordProcess process({"start:", "steps:1", "stop"}, nullptr,
                        {{"SMON_RT_TRACE_DIR", directory_.string()},
                         {"SMON_RT_RUN_ID", run_id_},
                         {"RANK", "3"},
                         {"WORLD_SIZE", "8"},
                         {"TORCHELASTIC_RESTART_COUNT", "2"},
                         {"NCCL_ALGO", "Ring"}});
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_TRUE(std::filesystem::exists(directory_ / ("rank-00003." + run_id_ + "-2.smon")));
  const RecordedTrace trace = read_traces(directory_);
  ASSERT_EQ(trace.identities.size(), 1u);
  EXPECT_EQ(trace.identities[0].world_size, 8);
  EXPECT_EQ(trace.identities[0].attempt, 2u);
  EXPECT_EQ(trace.identities[0].environment.at("NCCL_ALGO"), "Ring");
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)  // which stand in for write() themselves

TEST_F(RecordExitTest, AStopThatTheFileSystemDoesNotAnswerEndsInASecondAndLosesNothing) {
  RecordProcess process({start(",attempt=0"), "steps:10", "sync", "block_writes", "spans:100", "steps:7", "stop_timed",
                         start(), "steps:5", "exit:3"});
  const std::string stop = process.read_line_with("stop=");
  EXPECT_EQ(number_in(stop, "stop"), 6) << stop;
  EXPECT_GE(number_in(stop, "ms"), 900) << stop;
  EXPECT_EQ(process.read_line(), "start=5") << "not while the stop is still on its way";
  EXPECT_EQ(process.exit_code(), 3);
  const RecordedTrace left = read_traces(directory_);
  EXPECT_EQ(left.count(Kind::kForwardCompute), 40u);
  EXPECT_TRUE(left.damage.empty());
  EXPECT_TRUE(left.ends.empty());
  RecordProcess next({start(",attempt=1"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  const RecordedTrace merged = read_traces(directory_, "-0.smon");
  EXPECT_EQ(merged.count(Kind::kForwardCompute), 40u + 100u + 28u);
  EXPECT_EQ(merged.step_times.size(), 17u);
  EXPECT_EQ(merged.duplicates + merged.gaps, 0u);
}

TEST_F(RecordExitTest, AnExitThatTheFileSystemDoesNotAnswerIsNotHeldUp) {
  RecordProcess process({start(), "steps:10", "sync", "block_writes", "spans:100", "exit:4"});
  EXPECT_EQ(process.exit_code(), 4);
  EXPECT_EQ(read_traces(directory_).count(Kind::kForwardCompute), 40u);
}

#endif

}  // namespace
}  // namespace smon_rt
