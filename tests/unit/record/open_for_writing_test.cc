#include "record/open_for_writing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <string>

namespace smon_rt {
namespace {

/// In a process of its own, which has 0 to 2 closed: whether this is so.
bool is_so_without_standard_streams(const std::function<bool()>& condition) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (int fd = 0; fd < 3; ++fd) ::close(fd);
    ::_exit(condition() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

bool is_closed(int fd) {
  return ::fcntl(fd, F_GETFD) < 0;
}

class OpenForWritingTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }
  const std::string path_ = testing::TempDir() + "open_for_writing_" + std::to_string(::getpid());
};

TEST_F(OpenForWritingTest, AFileGetsNoNumberOfAStandardStreamAndNothingElseKeepsOne) {
  EXPECT_TRUE(is_so_without_standard_streams([&] {
    const int fd = open_for_writing(path_.c_str(), O_WRONLY | O_CREAT, 0600);
    return fd >= 3 && is_closed(0) && is_closed(1) && is_closed(2) && ::write(fd, "x", 1) == 1;
  }));
  EXPECT_EQ(std::filesystem::file_size(path_), 1u);
}

TEST_F(OpenForWritingTest, StreamsThatAreOpenStayAsTheyAre) {
  EXPECT_TRUE(is_so_without_standard_streams([&] {
    const int own = ::open("/dev/zero", O_RDONLY);  // becomes 0
    const int fd = open_for_writing(path_.c_str(), O_WRONLY | O_CREAT, 0600);
    char byte = 'x';
    return own == 0 && fd >= 3 && ::read(0, &byte, 1) == 1 && byte == '\0' && is_closed(1) && is_closed(2);
  }));
}

TEST_F(OpenForWritingTest, WhyItFailsIsSaid) {
  EXPECT_TRUE(is_so_without_standard_streams([&] {
    const int fd = open_for_writing((path_ + "/no such folder/file").c_str(), O_WRONLY | O_CREAT, 0600);
    return fd == -1 && errno == ENOENT && is_closed(0);
  }));
}

TEST_F(OpenForWritingTest, TheDescriptorIsNotInherited) {
  const int fd = open_for_writing(path_.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_GE(fd, 0);
  EXPECT_EQ(::fcntl(fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ::close(fd);
}

}  // namespace
}  // namespace smon_rt
