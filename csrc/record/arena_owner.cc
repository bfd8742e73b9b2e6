#include "record/arena_owner.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/process_state.h"
#include "format/in_flight.h"
#include "record/open_for_writing.h"

namespace smon_rt {

namespace {

struct flock whole_file(short type) {
  struct flock lock{};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// By the description; where the kernel has no such locks (before 3.15, some sandboxes), by the process.
int lock_command(int fd, int by_description, int by_process, struct flock& lock) noexcept {
  const struct flock asked = lock;
  const int result = ::fcntl(fd, by_description, &lock);
  if (result == 0 || errno != EINVAL) return result;
  lock = asked;
  return ::fcntl(fd, by_process, &lock);
}

struct OwnFiles {
  std::mutex mutex;
  std::vector<std::pair<dev_t, ino_t>> files;
};

OwnFiles& own_files() {
  static auto* const files = new OwnFiles;  // never gone: arenas may outlive whatever ends at exit
  return *files;
}

std::string error_text(int code) {
  return std::error_code(code, std::generic_category()).message();
}

/// Who records into an arena's file, in words; nothing if nobody does.
std::optional<std::string> live_owner(int fd, const struct stat& status) {
  const std::optional<ArenaProcess> process = read_arena_process(fd);
  const std::string words = process ? "process " + std::to_string(process->pid) : "a process that just begins";
  if (process && is_arena_owner_alive(process->pid, process->start_ticks, status)) return words;
  if (is_arena_locked(fd)) return words + (process ? " of another pid namespace" : "");
  return std::nullopt;
}

/// A name beside the dead process's file that is free: exec() starts our count anew, with the same pid.
std::string name_aside(const std::string& path) {
  static std::atomic<std::uint32_t> count{0};
  struct stat status{};
  std::string aside;
  do {
    aside = path + ".dead-" + std::to_string(::getpid()) + "-" + std::to_string(count.fetch_add(1));
  } while (::lstat(aside.c_str(), &status) == 0);
  return aside;
}

}  // namespace

bool lock_arena(int fd) noexcept {
  struct flock lock = whole_file(F_WRLCK);
  return lock_command(fd, F_OFD_SETLK, F_SETLK, lock) == 0;
}

void unlock_arena(int fd) noexcept {
  struct flock lock = whole_file(F_UNLCK);
  (void)lock_command(fd, F_OFD_SETLK, F_SETLK, lock);
}

bool is_arena_locked(int fd) {
  // All ranks of a job that start again merge what is there: one of them, for a moment.
  constexpr int kTries = 50;
  for (int i = 0;; ++i) {
    struct flock lock = whole_file(F_WRLCK);
    if (lock_command(fd, F_OFD_GETLK, F_GETLK, lock) != 0 || lock.l_type == F_UNLCK) return false;
    if (i == kTries) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

void add_own_arena(const struct stat& status) {
  const std::lock_guard lock(own_files().mutex);
  own_files().files.emplace_back(status.st_dev, status.st_ino);
}

void remove_own_arena(std::pair<dev_t, ino_t> file) {
  const std::lock_guard lock(own_files().mutex);
  std::erase(own_files().files, file);
}

bool is_arena_owner_alive(std::int32_t pid, std::uint64_t start_ticks, const struct stat& status) {
  if (!is_process_alive(pid, start_ticks)) return false;
  if (pid != ::getpid()) return true;
  const std::lock_guard lock(own_files().mutex);
  return std::ranges::count(own_files().files, std::pair(status.st_dev, status.st_ino)) > 0;
}

std::optional<ArenaProcess> read_arena_process(int fd) {
  const auto read_at = [&](void* target, std::size_t size, std::size_t offset) {
    return ::pread(fd, target, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
  };
  ArenaProcess process;
  char magic[sizeof(kArenaMagic)] = {};
  char boot_id[sizeof(ArenaHeader::boot_id) + 1] = {};
  const bool is_read =
      read_at(magic, sizeof(magic), offsetof(ArenaHeader, magic)) &&
      std::memcmp(magic, kArenaMagic, sizeof(magic)) == 0 &&
      read_at(&process.pid, sizeof(process.pid), offsetof(ArenaHeader, pid)) &&
      read_at(&process.start_ticks, sizeof(process.start_ticks), offsetof(ArenaHeader, process_start_ticks)) &&
      read_at(boot_id, sizeof(boot_id) - 1, offsetof(ArenaHeader, boot_id));
  if (!is_read) return std::nullopt;
  process.boot_id = boot_id;
  return process;
}

ArenaName free_arena_name(const std::string& path) {
  struct stat status{};
  if (::lstat(path.c_str(), &status) != 0) return {.is_usable = true, .owner = "", .why = ""};
  if (status.st_uid != ::geteuid()) return {.owner = "", .why = path + " belongs to another user"};
  if (!S_ISREG(status.st_mode)) return {.owner = "", .why = path + " is no regular file"};
  const OwnedDescriptor file(open_for_writing(path.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK));
  if (!file.is_open()) return {.owner = "", .why = path + ": " + error_text(errno)};
  if (!file.is_ours(&status)) return {.owner = "", .why = path + ": " + error_text(EBADF)};
  if (auto owner = live_owner(file.fd(), status)) return {.owner = *std::move(owner), .why = ""};
  if (::rename(path.c_str(), name_aside(path).c_str()) == 0 || errno == ENOENT) {
    return {.is_usable = true, .owner = "", .why = ""};
  }
  return {.owner = "", .why = "a dead process's " + path + ": " + error_text(errno)};
}

}  // namespace smon_rt
