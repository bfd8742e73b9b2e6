// Trace directories that fail: the job goes on, what could not be written is counted, and status says why.

#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "record_process.h"

namespace smon_rt {
namespace {

/// Also while the process writes a snapshot there.
void remove_under_its_hands(const std::filesystem::path& directory) {
  EXPECT_TRUE(becomes_true([&] {
    std::error_code error;
    std::filesystem::remove_all(directory, error);
    return !std::filesystem::exists(directory);
  }));
}

class RecordDiskTest : public RecordTest {
 protected:
  /// What is read where the directory is mounted in the child's namespace only: the child copies it out.
  void expect_no_file(const std::string& status, long recorded) {
    EXPECT_EQ(number_in(status, "file_error"), 1) << status;
    EXPECT_EQ(number_in(status, "recorded"), recorded) << status;
    EXPECT_NE(value_in(status, "last_error"), "") << status;
  }
};

TEST_F(RecordDiskTest, AFullDiskTurnsTheFileOffAndKeepsWhatIsWhole) {
  const auto limit = [] {
    const rlimit bytes{20000, 20000};
    return ::setrlimit(RLIMIT_FSIZE, &bytes) == 0;
  };
  RecordProcess process({start(), "steps:10", "sync", "spans:20000", "file_error", "status", "stop", "exit:4"}, limit);
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_EQ(process.read_line_with("stop="), "stop=5");
  EXPECT_EQ(process.exit_code(), 4) << "no SIGXFSZ reaches the job";
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_GE(trace.count(Kind::kForwardCompute), 40u);
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_TRUE(trace.ends.empty());
}

TEST_F(RecordDiskTest, AFullFileSystemTurnsTheFileOff) {
  const std::string path = directory_.string();
  RecordProcess process({start(), "steps:10", "spans:20000", "file_error", "status", "stop", "exit:4"},
                        [&] { return mount_tmpfs(path, "size=32k"); });
  const std::string status = process.read_line_with("started=");
  const int code = process.exit_code();
  if (code == RecordProcess::kSetUpFailed) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_EQ(code, 4);
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
}

TEST_F(RecordDiskTest, ADirectoryThatVanishesTurnsTheFileOff) {
  RecordProcess process({start(), "steps:10", "sync", "wait", "file_error", "status", "stop"});
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  remove_under_its_hands(directory_);
  process.go_on();
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_FALSE(std::filesystem::exists(directory_));
}

TEST_F(RecordDiskTest, WhatOnlyTheLastDrainCannotWriteIsSaidByStop) {
  RecordProcess process({start(), "steps:10", "sync", "limit_files", "spans:500", "stop", "status", "exit:4"});
  EXPECT_EQ(process.read_line_with("stop="), "stop=5");
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(process.exit_code(), 4);
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_EQ(number_in(status, "recorded"), 560) << status;
  EXPECT_EQ(number_in(status, "written"), 60) << status;
  EXPECT_EQ(number_in(status, "unwritten"), 500) << status;
  EXPECT_TRUE(value_in(status, "last_error").starts_with("not everything was written: ")) << status;
  EXPECT_EQ(static_cast<long>(read_traces(directory_).spans.size()), number_in(status, "written")) << status;
}

TEST_F(RecordDiskTest, WhereOnlyTheLastPacketFailsStopSaysSoToo) {
  RecordProcess process({start(), "steps:10", "sync", "limit_files", "stop", "status"});
  EXPECT_EQ(process.read_line_with("stop="), "stop=5");
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(process.exit_code(), 0);
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_EQ(number_in(status, "unwritten"), 0) << status;
}

TEST_F(RecordDiskTest, AFileSystemThatIsFullAtTheEndIsSaidByStop) {
  const std::string path = directory_.string();
  // More than the rest of the file's last page takes, at less than 3 bytes for each of such equal spans.
  RecordProcess process({start(), "steps:10", "sync", "fill_disk:" + path, "spans:4000", "stop", "status", "exit:4"},
                        [&] { return mount_tmpfs(path, "size=256k"); });
  const std::string stop = process.read_line_with("stop=");
  const std::string status = process.read_line_with("started=");
  const int code = process.exit_code();
  if (code == RecordProcess::kSetUpFailed) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_EQ(code, 4);
  EXPECT_EQ(stop, "stop=5");
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_EQ(number_in(status, "written") + number_in(status, "unwritten"), number_in(status, "recorded")) << status;
  EXPECT_GT(number_in(status, "unwritten"), 0) << status;
}

TEST_F(RecordDiskTest, ADirectoryThatVanishesBeforeStopHasNoSpans) {
  RecordProcess process({start(), "steps:10", "sync", "wait", "steps:10", "stop", "status", "exit:4"});
  ASSERT_EQ(process.read_line_with("ready"), "ready");
  remove_under_its_hands(directory_);
  process.go_on();
  EXPECT_EQ(process.read_line_with("stop="), "stop=5");
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(process.exit_code(), 4);
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_EQ(number_in(status, "written"), 0) << status;
  EXPECT_EQ(number_in(status, "unwritten"), 120) << status;
  EXPECT_NE(value_in(status, "last_error").find("removed"), std::string::npos) << status;
}

TEST_F(RecordDiskTest, AMissingParentIsSaidAndRecordingGoesOn) {
  RecordProcess process({"start:dir=" + (directory_ / "no" / "traces").string() + ",run=" + run_id_, "steps:10",
                         "status", "stop", "exit:5"});
  EXPECT_EQ(process.read_line(), "start=0");
  const std::string status = process.read_line_with("started=");
  expect_no_file(status, 60);
  EXPECT_NE(status.find("no/traces"), std::string::npos) << status;
  EXPECT_EQ(process.exit_code(), 5);
}

TEST_F(RecordDiskTest, AReadOnlyDirectoryIsSaidAndRecordingGoesOn) {
  const std::string path = directory_.string();
  RecordProcess process({start(), "steps:10", "status", "stop", "exit:5"}, [&] {
    if (::geteuid() != 0) return ::chmod(path.c_str(), 0500) == 0;
    return mount_tmpfs(path, "size=64k,mode=755") &&
           ::mount("none", path.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) == 0;
  });
  const std::string first = process.read_line();
  const std::string status = process.read_line_with("started=");
  const int code = process.exit_code();
  if (code == RecordProcess::kSetUpFailed) GTEST_SKIP() << "making a directory read-only for root needs a mount";
  EXPECT_EQ(first, "start=0");
  EXPECT_EQ(code, 5);
  expect_no_file(status, 60);
}

TEST_F(RecordDiskTest, LongRecordingsRotateAndEachFileStandsAlone) {
  RecordProcess process({start(",max_file_bytes=30000"), "intern:a name", "steps:5", "spans:20000", "stop", "status"});
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace all = read_traces(directory_);
  EXPECT_GT(all.files, 2u);
  EXPECT_EQ(static_cast<long>(all.spans.size()), number_in(status, "written")) << status;
  EXPECT_EQ(all.duplicates + all.gaps, 0u);
  for (std::size_t index = 0; index < all.files; ++index) {
    const std::string ending = index == 0 ? "-0.smon" : "-0-" + std::to_string(index) + ".smon";
    const RecordedTrace one = read_traces(directory_, run_id_ + ending);
    ASSERT_EQ(one.identities.size(), 1u) << ending;
    EXPECT_EQ(one.identities[0].file_index, index);
    EXPECT_EQ(one.ends.size(), 1u) << ending;
    if (index > 0) {
      EXPECT_EQ(one.names.size(), 1u) << ending;
    }
  }
}

}  // namespace
}  // namespace smon_rt
