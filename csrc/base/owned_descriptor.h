#pragma once

#include <sys/stat.h>
#include <sys/types.h>

namespace smon_rt {

/// The descriptor at a number that the job's own are not expected at: 64 or more, else 3 or more, never 0 to 2, which
/// the job prints to even after it closed them. Takes fd; gives back another one or, with errno set, -1.
int move_from_standard_streams(int fd) noexcept;

/// A descriptor that stays open while the job runs. A job may close numbers it knows nothing of (os.closerange), and
/// gets them for its own files then: so every use asks first whether the number still leads to the file it was made
/// for. Between that and the use a job can still take the number; nothing short of a thread with its own table of
/// descriptors would rule that out.
///
/// Threading: one thread.
class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  /// Takes fd, as open() returned it; one that cannot be told apart is closed, and errno says why. -1 is no descriptor.
  explicit OwnedDescriptor(int fd) noexcept;
  ~OwnedDescriptor() { close(); }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept;
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;

  /// Whether there is one; perhaps the job closed it.
  bool is_open() const noexcept { return fd_ >= 0; }
  int fd() const noexcept { return fd_; }

  /// Whether it still leads to our file; *status of it, if so.
  bool is_ours(struct stat* status) const noexcept;
  bool is_ours() const noexcept;

  /// Closes it if it is ours, and leaves the number alone if not.
  void close() noexcept;

 private:
  int fd_ = -1;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

}  // namespace smon_rt
