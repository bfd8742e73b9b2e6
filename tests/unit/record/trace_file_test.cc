#include "record/trace_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace smon_rt {
namespace {

namespace fs = std::filesystem;

class TraceFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "smon-trace-file-XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { fs::remove_all(directory_); }

  TraceFileOptions options() const {
    TraceFileOptions options;
    options.directory = directory_.string();
    options.rank = 3;
    return options;
  }
  static std::string content(const fs::path& path) {
    std::ostringstream text;
    text << std::ifstream(path, std::ios::binary).rdbuf();
    return text.str();
  }
  /// The number under which this process has the file open; -1 for none.
  static int descriptor_of(const fs::path& path) {
    for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (fs::read_symlink(entry.path(), error) == path) return std::stoi(entry.path().filename().string());
    }
    return -1;
  }

  fs::path directory_;
};

TEST_F(TraceFileTest, NamesTheFileByRankRunAndAttempt) {
  EXPECT_EQ(trace_file_stem("run", 0, 3), "rank-00003.run-0");
  EXPECT_EQ(trace_file_stem("a/../b c", 12, 123456), "rank-123456.a_.._b_c-12");
}

TEST_F(TraceFileTest, AppendsWholePackets) {
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  EXPECT_TRUE(file.append("first"));
  EXPECT_TRUE(file.append("second"));
  EXPECT_EQ(file.path(), (directory_ / "rank-00003.run-0.smon").string());
  EXPECT_EQ(content(file.path()), "firstsecond");
  EXPECT_EQ(file.file_bytes(), 11u);
}

TEST_F(TraceFileTest, NeverTouchesAFileThatIsThere) {
  std::ofstream(directory_ / "rank-00003.run-0.smon") << "earlier";
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  EXPECT_TRUE(file.append("mine"));
  EXPECT_EQ(file.path(), (directory_ / "rank-00003.run-0-1.smon").string());
  EXPECT_EQ(content(directory_ / "rank-00003.run-0.smon"), "earlier");
}

TEST_F(TraceFileTest, ANumberThatTheJobTookIsLeftAlone) {
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  ASSERT_TRUE(file.append("mine"));
  const std::string mine = file.path();
  const std::string other = (directory_ / "other").string();
  const int fd = descriptor_of(mine);
  ASSERT_GE(fd, 3);
  const int opened = ::open(other.c_str(), O_RDWR | O_CREAT, 0600);
  ASSERT_EQ(::dup2(opened, fd), fd);
  EXPECT_FALSE(file.append("more"));
  EXPECT_FALSE(file.is_on());
  EXPECT_NE(file.error().find("its descriptor was closed by the job"), std::string::npos) << file.error();
  EXPECT_EQ(content(other), "");
  EXPECT_EQ(content(mine), "mine");
  EXPECT_EQ(::close(fd), 0);
  ::close(opened);
}

TEST_F(TraceFileTest, AClosedNumberIsNoticedWithoutAWrite) {
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  ASSERT_EQ(::close(descriptor_of(file.path())), 0);
  file.check_exists();
  EXPECT_FALSE(file.is_on());
  EXPECT_NE(file.error().find("its descriptor was closed by the job"), std::string::npos) << file.error();
}

TEST_F(TraceFileTest, AFewDescriptorsAreEnough) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{40, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  TraceFile file(options());
  EXPECT_TRUE(file.open_next());
  EXPECT_TRUE(file.append("mine"));
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(TraceFileTest, IsFullAtItsLimitAndGoesOnInTheNextFile) {
  TraceFileOptions small = options();
  small.max_file_bytes = 8;
  TraceFile file(small);
  ASSERT_TRUE(file.open_next());
  EXPECT_TRUE(file.append("1234567"));
  EXPECT_FALSE(file.is_full());
  EXPECT_TRUE(file.append("89"));
  EXPECT_TRUE(file.is_full());
  ASSERT_TRUE(file.open_next());
  EXPECT_EQ(file.file_index(), 1u);
  EXPECT_FALSE(file.is_full());
  EXPECT_TRUE(file.append("next"));
  EXPECT_EQ(content(directory_ / "rank-00003.run-0-1.smon"), "next");
  EXPECT_EQ(file.total_bytes(), 13u);
}

TEST_F(TraceFileTest, IsNotFullOfItsHeadAlone) {
  TraceFileOptions small = options();
  small.max_file_bytes = 8;
  TraceFile file(small);
  ASSERT_TRUE(file.open_next());
  EXPECT_TRUE(file.append("twelve bytes"));
  file.end_head();
  EXPECT_FALSE(file.is_full());
  EXPECT_TRUE(file.append("eleven byte"));
  EXPECT_FALSE(file.is_full());
  EXPECT_TRUE(file.append("1"));
  EXPECT_TRUE(file.is_full());
  ASSERT_TRUE(file.open_next());
  EXPECT_TRUE(file.append("12345678"));
  EXPECT_TRUE(file.is_full()) << "the head is each file's own";
}

TEST_F(TraceFileTest, MakesTheLastPartOfTheDirectoryOnly) {
  TraceFileOptions there = options();
  there.directory = (directory_ / "traces").string();
  EXPECT_TRUE(TraceFile(there).open_next());
  TraceFileOptions missing = options();
  missing.directory = (directory_ / "no" / "traces").string();
  TraceFile file(missing);
  const Result<void> opened = file.open_next();
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find(missing.directory), std::string::npos);
  EXPECT_FALSE(file.is_on());
  EXPECT_FALSE(file.append("x"));
  EXPECT_EQ(file.error(), opened.error().message);
}

TEST_F(TraceFileTest, WithoutADirectoryThereIsNoFileAndNoError) {
  TraceFile file(TraceFileOptions{});
  EXPECT_TRUE(file.open_next());
  EXPECT_FALSE(file.is_on());
  EXPECT_EQ(file.error(), "");
}

TEST_F(TraceFileTest, TurnsOffWhenTheFileWasRemoved) {
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  file.check_exists();
  EXPECT_TRUE(file.is_on());
  fs::remove_all(directory_);
  file.check_exists();
  EXPECT_FALSE(file.is_on());
  EXPECT_NE(file.error().find("removed"), std::string::npos);
  EXPECT_FALSE(file.open_next()) << "an off file stays off";
}

TEST_F(TraceFileTest, ADirectoryThatVanishedIsNotMadeAgainByRotation) {
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  fs::remove_all(directory_);
  EXPECT_FALSE(file.open_next());
  EXPECT_FALSE(fs::exists(directory_));
}

// A limit of the file size behaves as a full disk: a short write first, then an error.
TEST_F(TraceFileTest, CutsAHalfPacketOffWhenTheDiskIsFull) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  TraceFile file(options());
  ASSERT_TRUE(file.open_next());
  ASSERT_TRUE(file.append("whole packet"));
  rlimit old_limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit limit{16, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_FALSE(file.append("a packet that does not fit"));
  setrlimit(RLIMIT_FSIZE, &old_limit);
  EXPECT_FALSE(file.is_on());
  EXPECT_NE(file.error().find("File too large"), std::string::npos) << file.error();
  EXPECT_EQ(content(file.path()), "whole packet");
  EXPECT_FALSE(file.append("never retried"));
  const timespec no_time{};
  while (sigtimedwait(&blocked, nullptr, &no_time) > 0) {
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

/// By another file.
void fill_disk(const fs::path& directory) {
  const int fd = ::open((directory / "other").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  const std::string page(4096, 'x');
  while (::write(fd, page.data(), page.size()) > 0) {
  }
  ::close(fd);
}

TEST_F(TraceFileTest, AFullDiskIsToldOfThoughNothingIsLeftOfTheLastBlock) {
  constexpr int kNoMount = 77;
  const std::string packets(4096 - 10, 'p');
  const std::string words(200, 'w');
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("tmpfs", directory_.c_str(), "tmpfs", 0, "size=64k") != 0) {
      ::_exit(kNoMount);
    }
    TraceFile file(options());
    file.set_last_words([&](const std::string&) { return words; });
    if (!file.open_next() || !file.append(packets)) ::_exit(1);
    fill_disk(directory_);
    if (file.append(std::string(8192, 'q')) || file.is_on()) ::_exit(2);
    if (file.error().find("No space left") == std::string::npos) ::_exit(3);
    ::_exit(content(file.path()) == packets + words ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount) GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_EQ(WEXITSTATUS(status), 0) << "4: without its last words";
}

}  // namespace
}  // namespace smon_rt
