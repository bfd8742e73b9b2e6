// Live snapshots, and windows of steps that are asked for.

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "record_process.h"

namespace smon_rt {
namespace {

class RecordRequestsTest : public RecordTest {
 protected:
  void SetUp() override {
    RecordTest::SetUp();
    talkative_ = {{"SMON_RT_SAMPLE_RATIO", "0"}, {"SMON_RT_LOG", "info"}};
  }
  /// What it says on stderr comes with what it prints.
  static bool join_outputs() { return ::dup2(1, 2) == 2; }

  /// All of it at once, as whoever asks a running job should do.
  void write_request(const std::string& text) const {
    std::ofstream(directory_ / "request.new") << text;
    std::filesystem::rename(directory_ / "request.new", directory_ / "request.json");
  }

  std::map<std::string, std::string> talkative_;
};

TEST_F(RecordRequestsTest, TheSnapshotShowsWhatIsOpen) {
  RecordProcess process({start(), "steps:3", "open:2", "wait", "stop"});
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  RecordedTrace live;
  ASSERT_TRUE(becomes_true([&] {
    live = read_traces(directory_, ".live");
    return live.open_spans.size() >= 3;
  })) << live.open_spans.size();
  EXPECT_EQ(live.files, 1u);
  ASSERT_EQ(live.identities.size(), 1u);
  EXPECT_EQ(live.open_spans.size(), 3u) << "two spans and the step";
  EXPECT_TRUE(live.damage.empty());
  process.go_on();
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_EQ(read_traces(directory_, ".live").files, 0u) << "removed when recording stops";
}

TEST_F(RecordRequestsTest, ARequestFileSamplesItsWindow) {
  RecordProcess process({start(), "steps:30", "wait", "steps:100", "stop"}, join_outputs, talkative_);
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  write_request(R"({"first_step": 60, "step_count": 10})");
  ASSERT_NE(process.read_line_with("smon_rt: info: request for 10 steps from 60: they will"), "");
  process.go_on();
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  std::size_t in_window = 0;
  for (const StepTime& step : trace.step_times) in_window += step.sampled && step.step >= 60 && step.step < 70;
  EXPECT_EQ(in_window, 10u);
  EXPECT_EQ(trace.step_times.size(), 130u);
}

TEST_F(RecordRequestsTest, AMalformedRequestIsIgnoredAndALateOneCounted) {
  RecordProcess process({start(), "steps:30", "wait", "wait", "steps:100", "stop"}, join_outputs, talkative_);
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  write_request(R"({"first_step": 60, "step_c)");
  ASSERT_NE(process.read_line_with("smon_rt: warning: "), "");
  process.go_on();
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  write_request(R"({"first_step": 5, "step_count": 10})");
  ASSERT_NE(process.read_line_with("smon_rt: info: request for 10 steps from 5: too late"), "");
  process.go_on();
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.losses.late_requests, 1u);
  for (const StepTime& step : trace.step_times) EXPECT_FALSE(step.sampled && step.step >= 30) << step.step;
}

TEST_F(RecordRequestsTest, ACallDoesNotReachAnotherRunInTheDirectory) {
  const std::string other_run = ",attempt=7,rank=1,run=" + run_id_ + ".other";
  RecordProcess other({"start:dir=" + directory_.string() + other_run, "steps:30", "wait", "steps:100", "stop"},
                      nullptr, talkative_);
  ASSERT_EQ(other.read_line_with("ready"), "ready");
  // Of the same run: hears the request and says so, after which the other has had its time, too.
  RecordProcess same({start(",rank=2"), "steps:30", "wait", "stop"}, join_outputs, talkative_);
  ASSERT_EQ(same.read_line_with("ready"), "ready");
  RecordProcess asking({start(), "steps:30", "request:60+10", "wait", "stop"}, nullptr, talkative_);
  ASSERT_EQ(asking.read_line_with("ready"), "ready");
  ASSERT_NE(same.read_line_with("smon_rt: info: request for 10 steps from 60: they will"), "");
  std::this_thread::sleep_for(std::chrono::milliseconds(2200));  // a turn of the other's reporter
  other.go_on();
  EXPECT_EQ(other.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_, ".other-7.smon");
  EXPECT_EQ(trace.step_times.size(), 130u);
  for (const StepTime& step : trace.step_times) EXPECT_FALSE(step.sampled && step.step >= 30) << step.step;
}

TEST_F(RecordRequestsTest, ACallIsToldToTheOtherRanks) {
  RecordProcess process({start(), "steps:30", "request:60+10", "wait", "steps:100", "stop"}, nullptr, talkative_);
  EXPECT_EQ(process.read_line_with("request="), "request=0");
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  std::string text;
  EXPECT_TRUE(becomes_true([&] {
    std::ifstream file(directory_ / "request.json");
    return !std::getline(file, text).fail();
  }));
  EXPECT_EQ(text, R"({"first_step": 60, "step_count": 10, "run_id": ")" + run_id_ + R"("})");
  process.go_on();
  EXPECT_EQ(process.exit_code(), 0);
  std::size_t sampled = 0;
  for (const StepTime& step : read_traces(directory_).step_times) sampled += step.sampled && step.step >= 60;
  EXPECT_EQ(sampled, 10u);
}

}  // namespace
}  // namespace smon_rt
