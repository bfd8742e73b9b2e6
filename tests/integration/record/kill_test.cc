// kill -9: what was in the arena goes into the file at the next start, once.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "format/in_flight.h"
#include "record_process.h"

namespace smon_rt {
namespace {

using RecordKillTest = RecordTest;

TEST_F(RecordKillTest, TheLastSpansAreMergedByTheNextStart) {
  {
    RecordProcess process({start(",attempt=0"), "steps:10", "spans:50", "open:3", "status", "wait"});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    process.send(SIGKILL);
    EXPECT_EQ(process.exit_code(), -SIGKILL);
  }
  ASSERT_EQ(arenas_of(run_id_).size(), 1u);
  RecordProcess next({start(",attempt=1"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  EXPECT_TRUE(arenas_of(run_id_).empty());
  const RecordedTrace trace = read_traces(directory_, "-0.smon");
  EXPECT_EQ(trace.files, 1u);
  EXPECT_EQ(trace.count(Kind::kForwardCompute), 90u);
  EXPECT_EQ(trace.count(Kind::kOptimizer), 10u);
  EXPECT_EQ(trace.open_spans.size(), 3u);
  EXPECT_EQ(trace.step_times.size(), 10u) << "of the last second, too";
  for (const StepTime& step : trace.step_times) EXPECT_TRUE(step.sampled) << step.step;
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  EXPECT_TRUE(trace.damage.empty());
  for (const auto& [at, span] : trace.spans) EXPECT_GE(span.end, span.start);
  ASSERT_EQ(trace.leftovers.size(), 1u) << "its file tells how it ended, and not only that nobody closed it";
  EXPECT_EQ(trace.leftovers[0].merged_by_pid, next.pid());
  EXPECT_EQ(trace.leftovers[0].step, 9);
  EXPECT_EQ(trace.leftovers[0].phase, static_cast<std::uint32_t>(Phase::kTraining));
  EXPECT_TRUE(trace.ends.empty());
  EXPECT_TRUE(read_traces(directory_, "-1.smon").leftovers.empty());
}

TEST_F(RecordKillTest, EachStepTimeIsThereOnceWhereverItIsKilled) {
  for (int turn = 0; turn < 6; ++turn) {
    RecordProcess process({start(",attempt=" + std::to_string(turn)), "slow_steps:1100", "wait", "slow_steps:100000"});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    process.go_on();
    RecordProcess clock({"start:", "slow_steps:" + std::to_string(100 + turn * 230)});
    clock.wait();
    process.send(SIGKILL);
    EXPECT_EQ(process.exit_code(), -SIGKILL);
  }
  RecordProcess next({start(",attempt=99"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  for (int turn = 0; turn < 6; ++turn) {
    const RecordedTrace trace = read_traces(directory_, "-" + std::to_string(turn) + ".smon");
    std::vector<std::uint32_t> steps;
    for (const StepTime& step : trace.step_times) steps.push_back(step.step);
    std::sort(steps.begin(), steps.end());
    ASSERT_GE(steps.size(), 1100u) << turn;
    for (std::size_t i = 0; i < steps.size(); ++i) ASSERT_EQ(steps[i], i) << turn;
  }
}

TEST_F(RecordKillTest, NothingIsTakenTwiceWhereverItIsKilled) {
  // At a time that differs each turn, while spans are being pushed, drained and written.
  for (int turn = 0; turn < 8; ++turn) {
    const std::string attempt = ",attempt=" + std::to_string(turn);
    RecordProcess process({start(attempt), "steps:10", "sync", "wait", "spans:1000000"});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    process.go_on();
    RecordProcess clock({"start:", "slow_steps:" + std::to_string(20 + turn * 23)});
    clock.wait();
    process.send(SIGKILL);
    EXPECT_EQ(process.exit_code(), -SIGKILL);
  }
  RecordProcess next({start(",attempt=99"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  for (int turn = 0; turn < 8; ++turn) {
    const RecordedTrace trace = read_traces(directory_, "-" + std::to_string(turn) + ".smon");
    EXPECT_GT(trace.spans.size(), 60u) << turn;
    EXPECT_EQ(trace.duplicates, 0u) << turn;
    EXPECT_EQ(trace.gaps, 0u) << turn;
    EXPECT_TRUE(trace.damage.empty()) << turn;
  }
}

TEST_F(RecordKillTest, OneWhoseDirectoryIsNotThereIsKeptAndMergedWhenItIs) {
  const std::filesystem::path there = directory_ / "there";
  {
    RecordProcess process({"start:dir=" + there.string() + ",attempt=0,run=" + run_id_, "steps:10", "open:3", "wait"});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    process.send(SIGKILL);
    process.wait();
  }
  std::filesystem::rename(there, directory_ / "elsewhere");  // as seen from a container that has it not mounted
  RecordProcess blind({start(",attempt=1"), "status", "stop"});
  EXPECT_EQ(value_in(blind.read_line_with("started="), "last_error"), "");
  EXPECT_EQ(blind.exit_code(), 0);
  EXPECT_EQ(arenas_of(run_id_).size(), 1u);
  std::filesystem::rename(directory_ / "elsewhere", there);
  RecordProcess next({start(",attempt=2"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  // Perhaps by another process that records on this machine just now.
  EXPECT_TRUE(becomes_true([&] { return arenas_of(run_id_).empty(); }));
  const RecordedTrace trace = read_traces(there);
  EXPECT_EQ(trace.step_times.size(), 10u);
  EXPECT_EQ(trace.open_spans.size(), 3u);
}

TEST_F(RecordKillTest, AWorkerThatOutlivesItsParentHoldsNothing) {
  RecordProcess process({start(",attempt=0"), "steps:10", "fork_stay", "steps:10", "wait"});
  const auto worker = static_cast<pid_t>(number_in(process.read_line_with("worker="), "worker"));
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  RecordProcess early({start(",attempt=1"), "stop"});
  EXPECT_EQ(early.exit_code(), 0);
  EXPECT_EQ(arenas_of(run_id_).size(), 1u) << "its owner lives";
  process.send(SIGKILL);
  process.wait();
  EXPECT_EQ(::kill(worker, 0), 0);
  RecordProcess next({start(",attempt=2"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  EXPECT_TRUE(arenas_of(run_id_).empty());
  EXPECT_EQ(read_traces(directory_, run_id_ + "-0.smon").step_times.size(), 20u);
  ::kill(worker, SIGKILL);
}

TEST_F(RecordKillTest, ASnapshotThatItLeftIsRemovedByTheNextStartOfTheRank) {
  for (const char* end : {"_exit:3", "abort"}) {
    RecordProcess process({start(",rank=2"), "steps:5", "wait", end});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    ASSERT_TRUE(becomes_true([&] { return read_traces(directory_, ".live").files == 1; }));
    process.go_on();
    process.wait();
    EXPECT_EQ(read_traces(directory_, ".live").files, 1u) << end;
    RecordProcess other({start(",rank=1"), "_exit:0"});
    EXPECT_EQ(other.exit_code(), 0);
    EXPECT_TRUE(std::filesystem::exists(directory_ / ("rank-00002." + run_id_ + "-0.live"))) << "of another rank";
    RecordProcess next({start(",rank=2"), "stop"});
    EXPECT_EQ(next.exit_code(), 0);
    EXPECT_FALSE(std::filesystem::exists(directory_ / ("rank-00002." + run_id_ + "-0.live"))) << end;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) std::filesystem::remove(entry.path());
  }
}

TEST_F(RecordKillTest, AHalfWrittenPacketIsCutOffBeforeTheMerge) {
  {
    RecordProcess process({start(",attempt=0"), "steps:10", "sync", "spans:50", "wait"});
    ASSERT_EQ(process.read_line_with("ready"), "ready");
    process.send(SIGKILL);
    process.wait();
  }
  const std::filesystem::path path = directory_ / ("rank-00000." + run_id_ + "-0.smon");
  std::ofstream(path, std::ios::binary | std::ios::app) << "\x0a\x7fhalf a packet";
  RecordProcess next({start(",attempt=1"), "stop"});
  EXPECT_EQ(next.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_, "-0.smon");
  EXPECT_EQ(trace.count(Kind::kForwardCompute), 90u);
  EXPECT_EQ(trace.duplicates + trace.gaps, 0u);
  EXPECT_TRUE(trace.damage.empty());
}

TEST_F(RecordKillTest, LiveArenasAndForeignFilesAreLeftAlone) {
  RecordProcess live({start(",rank=1"), "steps:1", "wait", "steps:1", "stop"});
  ASSERT_EQ(live.read_line_with("ready"), "ready");
  const std::string prefix = "/dev/shm/smon-" + std::to_string(::getuid()) + "-" + run_id_;
  std::ofstream(prefix + "-junk") << std::string(5000, '\xff');
  std::filesystem::create_directory(prefix + "-folder");
  std::filesystem::create_symlink("/etc/passwd", prefix + "-link");
  ASSERT_EQ(::mkfifo((prefix + "-pipe").c_str(), 0600), 0);
  RecordProcess next({start(",rank=2"), "stop"});
  EXPECT_EQ(next.read_line(), "start=0");
  EXPECT_EQ(next.exit_code(), 0);
  for (const char* name : {"-junk", "-folder", "-link", "-pipe"}) {
    EXPECT_TRUE(std::filesystem::exists(std::filesystem::symlink_status(prefix + name))) << name;
  }
  live.go_on();
  EXPECT_EQ(live.read_line_with("stop="), "stop=0");
  EXPECT_EQ(live.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_, "rank-00001." + run_id_ + "-0.smon");
  EXPECT_EQ(trace.step_times.size(), 2u);
}

TEST_F(RecordKillTest, ADamagedArenaHurtsNobody) {
  for (int turn = 0; turn < 24; ++turn) {
    {
      RecordProcess process({start(",attempt=0,rank=" + std::to_string(turn)), "steps:5", "spans:50", "wait"});
      ASSERT_EQ(process.read_line_with("ready"), "ready");
      process.send(SIGKILL);
      process.wait();
    }
    const auto arenas = arenas_of(run_id_);
    ASSERT_FALSE(arenas.empty());
    std::fstream file(arenas.front(), std::ios::binary | std::ios::in | std::ios::out);
    // From the field behind the sizes on: header, clock, losses, thread records.
    for (int i = 0; i < 40; ++i) {
      file.seekp(56 + (turn * 997 + i * 131) % 9000);
      file.put(static_cast<char>(turn * 31 + i * 7));
    }
    file.close();
    RecordProcess next({start(",attempt=1,rank=" + std::to_string(turn)), "steps:1", "stop"});
    EXPECT_EQ(next.exit_code(), 0) << turn;
    for (const auto& path : arenas_of(run_id_)) std::filesystem::remove(path);
  }
}

}  // namespace
}  // namespace smon_rt
