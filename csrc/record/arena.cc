#include "record/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/process_state.h"
#include "record/step_log.h"

namespace smon_rt {

namespace {

constexpr std::size_t kPageBytes = 4096;

std::size_t round_up(std::size_t bytes, std::size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

template <std::size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(target, text.data(), length);
  std::memset(target + length, 0, N - length);
}

std::string error_text(int code) {
  return std::error_code(code, std::generic_category()).message();
}

/// What is tried, largest first.
std::vector<ArenaSizes> candidate_sizes(const ArenaSizes& full) {
  std::vector<ArenaSizes> all{full};
  for (const std::uint32_t divisor : {4u, 16u}) {
    ArenaSizes sizes = full;
    sizes.large_ring_spans = std::max(full.large_ring_spans / divisor, 64u);
    sizes.ring_spans = std::max(full.ring_spans / divisor, 32u);
    sizes.large_slots = std::max(full.large_slots / divisor, 64u);
    sizes.slots = std::max(full.slots / divisor, 16u);
    if (divisor == 16) {
      sizes.threads = std::max(full.threads / 4, std::min(full.threads, 4u));
      sizes.large_threads = std::min(full.large_threads, sizes.threads);
      sizes.communicators = std::max(full.communicators / 4, 1u);
    }
    all.push_back(sizes);
  }
  return all;
}

bool is_valid(const ArenaSizes& sizes) {
  // Threads and slots must fit into a token; the two largest slot indices mean something else.
  return sizes.threads >= 1 && sizes.threads <= 256 && sizes.large_threads <= sizes.threads && sizes.slots >= 1 &&
         sizes.large_slots >= 1 && sizes.slots < 0xfffe && sizes.large_slots < 0xfffe &&
         std::has_single_bit(sizes.ring_spans) && std::has_single_bit(sizes.large_ring_spans) &&
         sizes.communicators >= 1 && sizes.communicators <= 0xffff;
}

/// Process-wide lock on a file, which a forked child does not inherit and every pid namespace sees.
struct flock write_lock() {
  struct flock lock{};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  return lock;
}

/// The files of this process image's arenas.
struct OwnFiles {
  std::mutex mutex;
  std::vector<std::pair<dev_t, ino_t>> files;
};

OwnFiles& own_files() {
  static auto* const files = new OwnFiles;  // never gone: arenas may outlive whatever ends at exit
  return *files;
}

std::pair<dev_t, ino_t> identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino};
}

/// Which other process holds the lock on the file, 0 for one of another pid namespace, -1 for none. Who merges
/// leftovers holds it for a moment, for instance when all ranks of a job start again: that is waited for.
pid_t lock_holder(int fd) {
  constexpr int kTries = 50;
  for (int i = 0;; ++i) {
    struct flock lock = write_lock();
    if (::fcntl(fd, F_GETLK, &lock) != 0 || lock.l_type == F_UNLCK) return -1;
    if (i == kTries) return lock.l_pid;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

/// Who holds the arena file of the same name: the text for an error, or nothing if its owner is gone.
std::optional<std::string> live_owner(const std::string& path) {
  const int fd = move_from_standard_streams(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (fd < 0) return "a file that cannot be opened (" + error_text(errno) + ")";
  struct stat status{};
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;
  char magic[sizeof(kArenaMagic)] = {};
  const auto read_at = [&](void* target, std::size_t size, std::size_t offset) {
    return ::pread(fd, target, size, static_cast<off_t>(offset)) == static_cast<ssize_t>(size);
  };
  const bool has_owner = ::fstat(fd, &status) == 0 && read_at(magic, sizeof(magic), offsetof(ArenaHeader, magic)) &&
                         std::memcmp(magic, kArenaMagic, sizeof(magic)) == 0 &&
                         read_at(&pid, sizeof(pid), offsetof(ArenaHeader, pid)) &&
                         read_at(&start_ticks, sizeof(start_ticks), offsetof(ArenaHeader, process_start_ticks));
  const bool is_alive = has_owner && is_arena_owner_alive(pid, start_ticks, status);
  const pid_t holder = is_alive ? 0 : lock_holder(fd);
  ::close(fd);
  if (is_alive) return "process " + std::to_string(pid);
  if (holder >= 0) return "process " + std::to_string(has_owner ? pid : holder) + " of another pid namespace";
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

/// A new file of this size with every page in place and locked by us, or why not.
Result<OwnedDescriptor> create_file(const std::string& path, std::size_t bytes) {
  // Growing a file beyond the process's limit is SIGXFSZ, which ends the job.
  struct rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Error{"the process may write files of " + std::to_string(limit.rlim_cur >> 10) + " KiB only (ulimit -f)"};
  }
  OwnedDescriptor file(::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) return Error{error_text(errno)};
  struct flock lock = write_lock();
  (void)::fcntl(file.fd(), F_SETLK, &lock);
  // Reserved now, since a store to a page that tmpfs cannot provide is SIGBUS.
  const int code = ::posix_fallocate(file.fd(), 0, static_cast<off_t>(bytes));
  if (code == 0) return file;
  ::unlink(path.c_str());
  return Error{error_text(code)};
}

void* map(int fd, std::size_t bytes) {
  const int flags = MAP_POPULATE | (fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

void replace_by_private_memory(void* memory, std::size_t bytes) noexcept {
  ::mmap(memory, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

}  // namespace

ArenaLayout::ArenaLayout(const ArenaSizes& sizes) {
  const std::size_t large = sizes.large_threads;
  const std::size_t small = sizes.threads - large;
  thread_records_offset = round_up(sizeof(ArenaHeader), kPageBytes);
  comm_records_offset = thread_records_offset + sizes.threads * sizeof(ThreadRecord);
  step_log_offset = round_up(comm_records_offset + sizes.communicators * sizeof(CommRecord), kCacheLineBytes);
  slots_offset = round_up(step_log_offset + StepLog::kCapacity * sizeof(StepTicks), kCacheLineBytes);
  const std::size_t slots = large * sizes.large_slots + small * sizes.slots;
  rings_offset = round_up(slots_offset + slots * sizeof(OpenSlot), kPageBytes);
  const std::size_t spans = large * sizes.large_ring_spans + small * sizes.ring_spans;
  bytes = round_up(rings_offset + spans * sizeof(Span), kPageBytes);
}

bool is_arena_locked(int fd) {
  return lock_holder(fd) >= 0;
}

bool is_arena_owner_alive(std::int32_t pid, std::uint64_t start_ticks, const struct stat& status) {
  if (!is_process_alive(pid, start_ticks)) return false;
  if (pid != ::getpid()) return true;
  const std::lock_guard lock(own_files().mutex);
  return std::ranges::count(own_files().files, identity_of(status)) > 0;
}

std::string Arena::file_name(const std::string& run_id, std::uint32_t attempt, std::int32_t rank) {
  constexpr std::size_t kMaxRunBytes = 120;  // a file name has 255
  std::string run = run_id.substr(0, kMaxRunBytes);
  for (char& c : run) {
    const bool is_plain =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '-';
    if (!is_plain) c = '_';
  }
  return "smon-" + std::to_string(::getuid()) + "-" + run + "-" + std::to_string(attempt) + "-" + std::to_string(rank);
}

Result<std::unique_ptr<Arena>> Arena::create(const ArenaOptions& options) {
  if (!is_valid(options.sizes)) return Error{"arena: sizes must be powers of two, at most 256 threads, 65,533 slots"};
  std::unique_ptr<Arena> arena(new Arena);
  arena->fork_count_ = fork_count();
  std::string why = options.directory.empty() ? "asked for" : "";
  if (!options.directory.empty()) {
    const std::string path = options.directory + "/" + file_name(options.run_id, options.attempt, options.rank);
    struct ::stat info{};
    if (::lstat(path.c_str(), &info) == 0) {
      if (const auto owner = live_owner(path)) {
        return Error{path + " belongs to " + *owner +
                     ", which records the same run, attempt and rank as this process (" + std::to_string(::getpid()) +
                     "): give one of them another RANK or SMON_RT_RUN_ID"};
      }
      if (::rename(path.c_str(), name_aside(path).c_str()) != 0)
        why = "a dead process's " + path + ": " + error_text(errno);
    }
    for (const ArenaSizes& sizes : candidate_sizes(options.sizes)) {
      const ArenaLayout layout(sizes);
      auto file = create_file(path, layout.bytes);
      if (!file) {
        if (why.empty()) why = path + ": " + file.error().message + " (" + std::to_string(layout.bytes >> 10) + " KiB)";
        continue;
      }
      struct stat status{};
      void* memory = file->is_ours(&status) ? map(file->fd(), layout.bytes) : nullptr;
      if (memory == nullptr) {
        why = path + ": " + error_text(errno);
        ::unlink(path.c_str());
        break;
      }
      {
        const std::lock_guard lock(own_files().mutex);
        own_files().files.push_back(identity_of(status));
      }
      arena->header_ = new (memory) ArenaHeader;
      arena->descriptor_ = std::move(*file);
      arena->file_ = identity_of(status);
      arena->path_ = path;
      arena->sizes_ = sizes;
      arena->bytes_ = layout.bytes;
      arena->memory_ = why.empty() ? "tmpfs" : "tmpfs, smaller rings: " + why;
      break;
    }
  }
  if (arena->header_ == nullptr) {
    const ArenaLayout layout(options.sizes);
    void* memory = map(-1, layout.bytes);
    if (memory == nullptr) return Error{"arena: no memory for " + std::to_string(layout.bytes >> 10) + " KiB"};
    arena->header_ = new (memory) ArenaHeader;
    arena->sizes_ = options.sizes;
    arena->bytes_ = layout.bytes;
    arena->memory_ = "private: " + why;
  }
  arena->lay_out(options);
  return arena;
}

void Arena::lay_out(const ArenaOptions& options) {
  const ArenaLayout layout(sizes_);
  ArenaHeader& header = *header_;
  std::memcpy(header.magic, kArenaMagic, sizeof(kArenaMagic));
  header.arena_bytes = bytes_;
  header.header_bytes = sizeof(ArenaHeader);
  header.span_bytes = sizeof(Span);
  header.slot_bytes = sizeof(OpenSlot);
  header.thread_record_bytes = sizeof(ThreadRecord);
  header.thread_record_count = sizes_.threads;
  header.comm_record_bytes = sizeof(CommRecord);
  header.comm_record_count = sizes_.communicators;
  header.thread_records_offset = layout.thread_records_offset;
  header.comm_records_offset = layout.comm_records_offset;
  header.step_log_offset = layout.step_log_offset;
  header.step_log_capacity = StepLog::kCapacity;
  header.step_ticks_bytes = sizeof(StepTicks);
  header.pid = ::getpid();
  header.rank = options.rank;
  header.world_size = options.world_size;
  header.attempt = options.attempt;
  header.process_start_ticks = process_start_ticks(header.pid).value_or(0);
  copy_text(header.run_id, options.run_id);
  copy_text(header.host, host_name());
  copy_text(header.boot_id, boot_id());

  auto* base = reinterpret_cast<std::byte*>(header_);
  std::size_t slots_at = layout.slots_offset;
  std::size_t ring_at = layout.rings_offset;
  for (std::uint32_t i = 0; i < sizes_.threads; ++i) {
    auto* record = new (base + layout.thread_records_offset + i * sizeof(ThreadRecord)) ThreadRecord;
    record->ring_capacity = sizes_.ring_spans_of(i);
    record->slot_count = sizes_.slots_of(i);
    record->ring_offset = ring_at;
    record->slots_offset = slots_at;
    for (std::uint32_t k = 0; k < record->slot_count; ++k) new (base + slots_at + k * sizeof(OpenSlot)) OpenSlot;
    for (std::uint32_t k = 0; k < record->ring_capacity; ++k) new (base + ring_at + k * sizeof(Span)) Span;
    slots_at += record->slot_count * sizeof(OpenSlot);
    ring_at += record->ring_capacity * sizeof(Span);
  }
  for (std::uint32_t i = 0; i < sizes_.communicators; ++i) {
    new (base + layout.comm_records_offset + i * sizeof(CommRecord)) CommRecord;
  }
  for (std::size_t i = 0; i < StepLog::kCapacity; ++i) {
    new (base + layout.step_log_offset + i * sizeof(StepTicks)) StepTicks;
  }
  // A reader of the file takes an arena as it is only once this says so.
  std::atomic_ref<std::uint32_t>(header.is_complete).store(1, std::memory_order_release);
}

void Arena::close() noexcept {
  if (is_closed_) return;
  is_closed_ = true;
  if (fork_count_ != fork_count()) return;  // the parent's: its file and lock are not ours, its memory is detached
  if (header_ != nullptr) replace_by_private_memory(header_, bytes_);
  if (path_.empty()) return;
  ::unlink(path_.c_str());
  descriptor_.close();
  const std::lock_guard lock(own_files().mutex);
  std::erase(own_files().files, file_);
}

void Arena::detach_in_child() noexcept {
  replace_by_private_memory(header_, bytes_);
}

std::span<ThreadRecord> Arena::threads() noexcept {
  auto* first = reinterpret_cast<std::byte*>(header_) + ArenaLayout(sizes_).thread_records_offset;
  return {reinterpret_cast<ThreadRecord*>(first), sizes_.threads};
}

std::span<CommRecord> Arena::communicators() noexcept {
  auto* first = reinterpret_cast<std::byte*>(header_) + ArenaLayout(sizes_).comm_records_offset;
  return {reinterpret_cast<CommRecord*>(first), sizes_.communicators};
}

std::span<StepTicks> Arena::step_log() noexcept {
  auto* first = reinterpret_cast<std::byte*>(header_) + ArenaLayout(sizes_).step_log_offset;
  return {reinterpret_cast<StepTicks*>(first), StepLog::kCapacity};
}

std::span<OpenSlot> Arena::slots(std::uint32_t thread) noexcept {
  const ThreadRecord& record = threads()[thread];
  auto* first = reinterpret_cast<std::byte*>(header_) + record.slots_offset;
  return {reinterpret_cast<OpenSlot*>(first), record.slot_count};
}

std::span<Span> Arena::ring(std::uint32_t thread) noexcept {
  const ThreadRecord& record = threads()[thread];
  auto* first = reinterpret_cast<std::byte*>(header_) + record.ring_offset;
  return {reinterpret_cast<Span*>(first), record.ring_capacity};
}

void Arena::set_trace_file(const std::string& path) noexcept {
  copy_text(header_->trace_file, path);
}

}  // namespace smon_rt
