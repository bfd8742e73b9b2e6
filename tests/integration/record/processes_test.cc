// More than one process, or one that starts more than once.

#include <filesystem>
#include <string>

#include "record_process.h"

namespace smon_rt {
namespace {

using RecordProcessesTest = RecordTest;

TEST_F(RecordProcessesTest, StartStopStartMakesTwoWholeTraces) {
  RecordProcess process({start(), "steps:3", "stop", "steps:100", start(), "steps:5", "stop", "stop"});
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace first = read_traces(directory_, "-0.smon");
  const RecordedTrace second = read_traces(directory_, "-1.smon");
  EXPECT_EQ(first.count(Kind::kForwardCompute), 12u);
  EXPECT_EQ(second.count(Kind::kForwardCompute), 20u) << "what is between stop and start is not recorded";
  EXPECT_EQ(read_traces(directory_).duplicates, 0u) << "ring ids are never used twice in a process";
  EXPECT_EQ(process.read_line(), "start=0");
  EXPECT_EQ(process.read_line(), "stop=0");
  EXPECT_EQ(process.read_line(), "start=0");
  EXPECT_EQ(process.read_line(), "stop=0");
  EXPECT_EQ(process.read_line(), "stop=3");
}

TEST_F(RecordProcessesTest, ManyStartsLeaveNothingBehind) {
  std::vector<std::string> arguments;
  for (int i = 0; i < 30; ++i) arguments.insert(arguments.end(), {start(), "steps:2", "stop"});
  RecordProcess process(arguments);
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_EQ(read_traces(directory_).step_times.size(), 60u);
  EXPECT_TRUE(arenas_of(run_id_).empty());
}

TEST_F(RecordProcessesTest, AStartedProcessIsNotStartedAgain) {
  RecordProcess process({start(), start(), "stop"});
  EXPECT_EQ(process.read_line(), "start=0");
  EXPECT_EQ(process.read_line(), "start=2");
  EXPECT_EQ(process.exit_code(), 0);
}

TEST_F(RecordProcessesTest, ARestartedAttemptHasAFileOfItsOwn) {
  for (const char* count : {"0", "1"}) {
    RecordProcess process({start(), "steps:2", "stop"}, nullptr, {{"TORCHELASTIC_RESTART_COUNT", count}});
    EXPECT_EQ(process.exit_code(), 0);
  }
  EXPECT_EQ(read_traces(directory_, "-0.smon").identities.at(0).attempt, 0u);
  EXPECT_EQ(read_traces(directory_, "-1.smon").identities.at(0).attempt, 1u);
}

TEST_F(RecordProcessesTest, TheSameAttemptTwiceGoesOnInAnotherFile) {
  for (int i = 0; i < 2; ++i) {
    RecordProcess process({start(",attempt=0"), "steps:2", "stop"});
    EXPECT_EQ(process.exit_code(), 0);
  }
  EXPECT_EQ(read_traces(directory_, run_id_ + "-0.smon").step_times.size(), 2u);
  EXPECT_EQ(read_traces(directory_, run_id_ + "-0-1.smon").step_times.size(), 2u);
}

TEST_F(RecordProcessesTest, TwoLiveProcessesOfOneRankAreRefusedAndBothNamed) {
  RecordProcess live({start(), "wait", "steps:1", "stop"});
  ASSERT_EQ(live.read_line_with("ready"), "ready");
  for (const std::string attempt : {"", ",attempt=0"}) {
    RecordProcess second({start(attempt), "status", "steps:5", "exit:8"});
    EXPECT_EQ(second.read_line(), "start=5");
    const std::string error = value_in(second.read_line(), "last_error");
    EXPECT_NE(error.find(std::to_string(live.pid())), std::string::npos) << error;
    EXPECT_NE(error.find(std::to_string(second.pid())), std::string::npos) << error;
    EXPECT_EQ(second.exit_code(), 8);
  }
  live.go_on();
  EXPECT_EQ(live.read_line_with("stop="), "stop=0");
  EXPECT_EQ(live.exit_code(), 0);
  EXPECT_EQ(read_traces(directory_).step_times.size(), 1u);
}

TEST_F(RecordProcessesTest, TwoJobsWithoutARunIdRecordIntoTheirOwnDirectories) {
  const std::filesystem::path other = directory_ / "other";
  RecordProcess live({start(), "wait", "steps:1", "stop"});
  ASSERT_EQ(live.read_line_with("ready"), "ready");
  RecordProcess second({"start:dir=" + other.string() + ",run=" + run_id_, "steps:2", "stop"});
  EXPECT_EQ(second.read_line(), "start=0");
  EXPECT_EQ(second.exit_code(), 0);
  EXPECT_EQ(read_traces(other).step_times.size(), 2u);
  live.go_on();
  EXPECT_EQ(live.exit_code(), 0);
}

TEST_F(RecordProcessesTest, AForkedWorkerThatRecordsLeavesTheParentAlone) {
  RecordProcess process({start(), "steps:5", "fork:100000", "steps:5", "status", "stop"});
  EXPECT_EQ(process.read_line_with("child="), "child=0");
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(number_in(status, "recorded"), 60) << status;
  EXPECT_EQ(number_in(status, "dropped"), 0) << status;
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.count(Kind::kBackwardCompute), 0u);
  EXPECT_EQ(trace.step_times.size(), 10u);
  EXPECT_TRUE(trace.names.empty());
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
}

TEST_F(RecordProcessesTest, AForkedWorkerThatExitsLeavesTheParentsFileOpen) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer ends a forked child of a threaded process that starts threads";
#endif
  RecordProcess process({start(), "steps:5", "fork_start:" + (directory_ / "child").string(), "steps:5", "stop"});
  EXPECT_EQ(process.read_line_with("child="), "child=0");
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_EQ(read_traces(directory_).step_times.size(), 10u);
  EXPECT_EQ(read_traces(directory_).ends, std::vector<std::string>{"stop"});
  EXPECT_EQ(read_traces(directory_ / "child").step_times.size(), 1u) << "a child may record on its own";
}

TEST_F(RecordProcessesTest, AnImageThatExecReplacedIsNoOtherProcess) {
  for (const std::string attempt : {"", ",attempt=7"}) {
    RecordProcess process({start(attempt), "steps:5", "open:2", "exec", start(attempt), "steps:3", "stop"});
    EXPECT_EQ(process.read_line(), "start=0");
    EXPECT_EQ(process.read_line(), "start=0") << attempt;
    EXPECT_EQ(process.read_line(), "stop=0") << attempt;
    EXPECT_EQ(process.exit_code(), 0);
    EXPECT_TRUE(arenas_of(run_id_).empty());
  }
  const RecordedTrace first = read_traces(directory_, run_id_ + "-0.smon");
  EXPECT_EQ(first.step_times.size(), 5u) << "of the image before, merged";
  EXPECT_EQ(first.open_spans.size(), 2u);
  EXPECT_EQ(read_traces(directory_, run_id_ + "-1.smon").step_times.size(), 3u);
  EXPECT_EQ(read_traces(directory_, run_id_ + "-7.smon").step_times.size(), 5u);
  EXPECT_EQ(read_traces(directory_, run_id_ + "-7-1.smon").step_times.size(), 3u);
}

TEST_F(RecordProcessesTest, ThreadsThatComeAndGoGetRingsAgain) {
  RecordProcess process({start(), "threads:300", "status", "stop"});
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  EXPECT_EQ(static_cast<long>(trace.spans.size()), number_in(status, "recorded")) << status;
  EXPECT_EQ(number_in(status, "recorded") + number_in(status, "dropped"), 30000) << status;
}

TEST_F(RecordProcessesTest, PausedNothingIsRecorded) {
  RecordProcess process({start(), "steps:2", "pause", "steps:50", "status", "resume", "steps:3", "stop"});
  EXPECT_EQ(number_in(process.read_line_with("started="), "paused"), 1);
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_EQ(read_traces(directory_).count(Kind::kForwardCompute), 20u);
}

}  // namespace
}  // namespace smon_rt
