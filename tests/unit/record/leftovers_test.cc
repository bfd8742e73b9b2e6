#include "record/leftovers.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/log.h"
#include "record/arena.h"
#include "record/recorder.h"

namespace smon_rt {
namespace {

namespace fs = std::filesystem;

/// A folder in the place of /dev/shm: what records on this machine meanwhile does not see it.
class LeftoversTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "smon-leftovers-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    fs::create_directory(tmpfs());
    set_log_level(LogLevel::kInfo);
  }
  void TearDown() override {
    set_log_level(LogLevel::kWarning);
    fs::remove_all(directory_);
  }

  fs::path tmpfs() const { return directory_ / "tmpfs"; }
  std::vector<fs::path> arenas() const {
    std::vector<fs::path> paths;
    for (const auto& entry : fs::directory_iterator(tmpfs())) paths.push_back(entry.path());
    return paths;
  }
  /// What a process leaves that recorded into this file and was killed.
  void leave_arena(const fs::path& trace_file) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ArenaOptions options;
      options.directory = tmpfs().string();
      auto arena = Arena::create(options);
      if (arena) (*arena)->set_trace_file(trace_file.string());
      ::_exit(arena ? 0 : 1);
    }
    int status = 0;
    ::waitpid(pid, &status, 0);
    ASSERT_EQ(status, 0);
    ASSERT_EQ(arenas().size(), 1u);
  }
  LeftoverCounts merge(const LeftoverLimits& limits = {.least_free_ratio = 0}) {
    testing::internal::CaptureStderr();
    const LeftoverCounts counts = merge_leftovers(tmpfs().string(), "", limits);
    log_ = testing::internal::GetCapturedStderr();
    return counts;
  }

  fs::path directory_;
  std::string log_;
};

TEST_F(LeftoversTest, WhoseDirectoryIsNotThereIsKeptForADayThenRemovedAndSaidOnce) {
  leave_arena(directory_ / "gone" / "rank-00000.run-0.smon");
  const LeftoverLimits limits{.least_free_ratio = 0};
  for (const auto& age : {std::chrono::hours(0), std::chrono::hours(23)}) {
    fs::last_write_time(arenas().at(0), fs::file_time_type::clock::now() - age);
    const LeftoverCounts counts = merge(limits);
    EXPECT_EQ(counts.kept_arenas, 1u) << age.count();
    EXPECT_EQ(counts.problem, "") << "nothing to warn of: nobody can do anything about it";
    ASSERT_EQ(arenas().size(), 1u);
  }
  fs::last_write_time(arenas().at(0), fs::file_time_type::clock::now() - std::chrono::hours(25));
  const LeftoverCounts counts = merge(limits);
  EXPECT_EQ(counts.dropped_arenas, 1u);
  EXPECT_EQ(counts.problem, "");
  EXPECT_TRUE(arenas().empty());
  EXPECT_NE(log_.find("smon_rt: info: leftover "), std::string::npos) << log_;
  EXPECT_NE(log_.find("lost are 0 spans"), std::string::npos) << log_;
  EXPECT_EQ(merge(limits), LeftoverCounts{});
  EXPECT_EQ(log_, "");
}

TEST_F(LeftoversTest, WhoseDirectoryIsNotThereGoesWhenTheTmpfsFillsUp) {
  leave_arena(directory_ / "gone" / "rank-00000.run-0.smon");
  EXPECT_EQ(merge({.least_free_ratio = 2}).dropped_arenas, 1u) << "there is never twice as much free as there is";
  EXPECT_TRUE(arenas().empty());
}

TEST_F(LeftoversTest, IsMergedOnceItsDirectoryIsThere) {
  // As a mount that came late: what keeps it is only that the directory could not be seen.
  leave_arena(directory_ / "late" / "rank-00000.run-0.smon");
  EXPECT_EQ(merge().kept_arenas, 1u);
  fs::create_directory(directory_ / "late");
  std::ofstream(directory_ / "late" / "rank-00000.run-0.smon") << "no trace";
  const LeftoverCounts counts = merge();
  EXPECT_EQ(counts.dropped_arenas, 1u);
  EXPECT_NE(counts.problem.find("does not begin as a trace file"), std::string::npos) << counts.problem;
}

TEST_F(LeftoversTest, OfADeadParentIsNotHeldByTheWorkersThatItForked) {
  int stay[2];
  int made[2];
  ASSERT_EQ(::pipe(stay), 0);
  ASSERT_EQ(::pipe(made), 0);
  const pid_t parent = ::fork();
  if (parent == 0) {
    RecorderOptions options;
    options.arena.directory = tmpfs().string();
    auto recorder = Recorder::create(options);
    if (!recorder) ::_exit(1);
    (*recorder)->arena().set_trace_file((directory_ / "gone" / "rank-00000.run-0.smon").string());
    const pid_t worker = ::fork();
    if (worker == 0) {  // a DataLoader's worker: lives on until its pipe is closed
      ::close(stay[1]);
      char nothing;
      (void)!::read(stay[0], &nothing, 1);
      ::_exit(0);
    }
    (void)!::write(made[1], &worker, sizeof worker);
    ::pause();
  }
  pid_t worker = 0;
  ASSERT_EQ(::read(made[0], &worker, sizeof worker), static_cast<ssize_t>(sizeof worker));
  EXPECT_EQ(merge({.least_free_ratio = 2}), LeftoverCounts{}) << "its parent lives";
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_EQ(::kill(worker, 0), 0) << "the worker lives";
  EXPECT_EQ(merge({.least_free_ratio = 2}).dropped_arenas, 1u);
  for (const int fd : {stay[0], stay[1], made[0], made[1]}) ::close(fd);
}

TEST_F(LeftoversTest, WhatCannotBeAppendedToIsTriedForAWhile) {
  const fs::path trace_file = directory_ / "rank-00000.run-0.smon";
  std::ofstream(directory_ / "aside") << "a trace";
  fs::create_symlink(directory_ / "aside", trace_file);  // is not followed
  leave_arena(trace_file);
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(5);
  fs::last_write_time(arenas().at(0), long_ago);
  for (int turn = 0; turn < 2; ++turn) {  // it is old, but the first try is not
    const LeftoverCounts counts = merge();
    EXPECT_EQ(counts.kept_arenas, 1u);
    EXPECT_NE(counts.problem.find("cannot open"), std::string::npos) << counts.problem;
    ASSERT_EQ(arenas().size(), 1u);
  }
  fs::last_write_time(arenas().at(0), long_ago);
  const LeftoverCounts counts = merge();
  EXPECT_EQ(counts.dropped_arenas, 1u);
  EXPECT_EQ(counts.problem, "");
  EXPECT_NE(log_.find("smon_rt: info: leftover "), std::string::npos) << log_;
  EXPECT_TRUE(arenas().empty());
}

TEST_F(LeftoversTest, AnArenaOfThisProcessIsLeftAloneOnlyIfThisImageMadeIt) {
  leave_arena(directory_ / "gone" / "rank-00000.run-0.smon");
  const fs::path left = arenas().at(0);
  ArenaOptions options;
  options.directory = tmpfs().string();
  options.attempt = 1;
  const auto own = Arena::create(options);
  ASSERT_TRUE(own.has_value());
  {  // as if exec() had replaced its image: this process's pid and start, in a file that no arena of ours lies in
    std::fstream file(left, std::ios::binary | std::ios::in | std::ios::out);
    file.write(reinterpret_cast<const char*>(&(*own)->header()), sizeof(ArenaHeader));
  }
  EXPECT_EQ(merge({.least_free_ratio = 2}).dropped_arenas, 1u);
  EXPECT_EQ(arenas(), std::vector<fs::path>{(*own)->path()});
}

TEST_F(LeftoversTest, OfAProcessThatWasKilledWhileItMadeItsArenaNobodyHears) {
  const auto path = tmpfs() / ("smon-" + std::to_string(::geteuid()) + "-run-0-0");
  for (const std::string& content : {std::string(), std::string(100'000, '\0'), std::string(100'000, 'x')}) {
    std::ofstream(path) << content;
    EXPECT_EQ(merge().dropped_arenas, 0u) << "one may be just about to make it";
    const LeftoverCounts counts = merge({.least_free_ratio = 0, .unreadable_s = -1});
    EXPECT_EQ(counts.dropped_arenas, 1u);
    EXPECT_TRUE(arenas().empty());
    EXPECT_EQ(counts.problem.empty(), content.find('x') == std::string::npos) << counts.problem;
  }
}

}  // namespace
}  // namespace smon_rt
