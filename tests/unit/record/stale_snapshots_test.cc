#include "record/stale_snapshots.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/process_state.h"
#include "format/trace_encoder.h"
#include "record/arena.h"

namespace smon_rt {
namespace {

namespace fs = std::filesystem;

constexpr std::int32_t kNoPid = (1 << 22) + 5;  // above what Linux gives out

class StaleSnapshotsTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "smon-snapshots-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    options_.trace_directory = directory_.string();
    options_.arena_directory = directory_.string();
    options_.rank = 3;
    options_.now_s = std::time(nullptr);
    who_.run_id = "run";
    who_.rank = 3;
    who_.host = host_name();
    who_.boot_id = boot_id();
    who_.pid = kNoPid;
    who_.process_start_ticks = 7;
  }
  void TearDown() override { fs::remove_all(directory_); }

  fs::path write(const std::string& name = "rank-00003.run-0.live") {
    std::string packets;
    append_identity(packets, who_);
    append_end(packets, "snapshot");
    std::ofstream(directory_ / name, std::ios::binary) << packets;
    return directory_ / name;
  }
  bool is_removed(const fs::path& path) {
    const std::uint32_t removed = remove_stale_snapshots(options_);
    EXPECT_EQ(removed, fs::exists(path) ? 0u : 1u);
    return !fs::exists(path);
  }

  fs::path directory_;
  StaleSnapshotOptions options_;
  TraceIdentity who_;
};

TEST_F(StaleSnapshotsTest, OfADeadProcessOfThisHostIsRemovedHoweverYoung) {
  EXPECT_TRUE(is_removed(write()));
  EXPECT_TRUE(is_removed(write("rank-00003.run-7.live")));
}

TEST_F(StaleSnapshotsTest, OfALiveProcessIsLeft) {
  who_.pid = ::getppid();
  who_.process_start_ticks = process_start_ticks(who_.pid).value();
  EXPECT_FALSE(is_removed(write()));
  who_.process_start_ticks += 1;  // an earlier process had this number
  EXPECT_TRUE(is_removed(write()));
}

TEST_F(StaleSnapshotsTest, OfThisProcessIsOfARecordingBefore) {
  who_.pid = ::getpid();
  who_.process_start_ticks = process_start_ticks(who_.pid).value();
  EXPECT_TRUE(is_removed(write()));
}

TEST_F(StaleSnapshotsTest, OfAnotherPidNamespaceLivesWithItsArena) {
  ArenaOptions arena_options;
  arena_options.directory = directory_.string();
  arena_options.rank = 3;
  auto arena = Arena::create(arena_options);
  ASSERT_TRUE(arena.has_value());
  (*arena)->header().pid = kNoPid;
  EXPECT_FALSE(is_removed(write()));
  arena->reset();
  EXPECT_TRUE(is_removed(write()));
}

TEST_F(StaleSnapshotsTest, OfAnotherHostOrBootOnlyItsAgeTells) {
  for (std::string* who : {&who_.host, &who_.boot_id}) {
    const std::string before = *who;
    *who = "another";
    const fs::path path = write();
    EXPECT_FALSE(is_removed(path));
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(50));
    EXPECT_FALSE(is_removed(path));
    fs::last_write_time(path, fs::file_time_type::clock::now() - std::chrono::seconds(90));
    EXPECT_TRUE(is_removed(path));
    *who = before;
  }
}

TEST_F(StaleSnapshotsTest, WhatIsNoSnapshotOfTheRankIsLeft) {
  std::ofstream(directory_ / "rank-00003.junk-0.live") << "no trace";
  fs::create_symlink("/etc/passwd", directory_ / "rank-00003.link-0.live");
  fs::create_directory(directory_ / "rank-00003.folder-0.live");
  write("rank-00003.run-0.smon");
  who_.rank = 4;
  write("rank-00004.run-0.live");
  write("rank-00003.renamed-0.live");
  EXPECT_EQ(remove_stale_snapshots(options_), 0u);
  options_.trace_directory += "/missing";
  EXPECT_EQ(remove_stale_snapshots(options_), 0u);
}

}  // namespace
}  // namespace smon_rt
