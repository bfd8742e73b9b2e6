#include "base/owned_descriptor.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace smon_rt {

int move_from_standard_streams(int fd) noexcept {
  constexpr int kOutOfTheWay = 64;
  constexpr int kFirstOfFiles = 3;
  if (fd < 0 || fd >= kOutOfTheWay) return fd;
  int moved = ::fcntl(fd, F_DUPFD_CLOEXEC, kOutOfTheWay);  // fails where RLIMIT_NOFILE is small
  if (moved < 0 && fd < kFirstOfFiles) moved = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstOfFiles);
  if (moved < 0 && fd >= kFirstOfFiles) return fd;
  const int error_number = errno;
  ::close(fd);
  errno = error_number;
  return moved;
}

OwnedDescriptor::OwnedDescriptor(int fd) noexcept : fd_(move_from_standard_streams(fd)) {
  if (fd_ < 0) return;
  struct stat status{};
  if (::fstat(fd_, &status) != 0) {
    const int error_number = errno;
    ::close(std::exchange(fd_, -1));
    errno = error_number;
    return;
  }
  device_ = status.st_dev;
  inode_ = status.st_ino;
}

OwnedDescriptor::OwnedDescriptor(OwnedDescriptor&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), device_(other.device_), inode_(other.inode_) {}

OwnedDescriptor& OwnedDescriptor::operator=(OwnedDescriptor&& other) noexcept {
  if (this == &other) return *this;
  close();
  fd_ = std::exchange(other.fd_, -1);
  device_ = other.device_;
  inode_ = other.inode_;
  return *this;
}

bool OwnedDescriptor::is_ours(struct stat* status) const noexcept {
  return fd_ >= 0 && ::fstat(fd_, status) == 0 && status->st_dev == device_ && status->st_ino == inode_;
}

bool OwnedDescriptor::is_ours() const noexcept {
  struct stat status{};
  return is_ours(&status);
}

void OwnedDescriptor::close() noexcept {
  if (is_ours()) ::close(fd_);
  fd_ = -1;
}

}  // namespace smon_rt
