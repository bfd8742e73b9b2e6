#include "record/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/process_state.h"
#include "record/arena_owner.h"
#include "record/open_for_writing.h"
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
      sizes.channels = full.channels / 16;
    }
    all.push_back(sizes);
  }
  return all;
}

bool is_valid(const ArenaSizes& sizes) {
  // Threads and slots must fit into a token.
  return sizes.threads >= 1 && sizes.threads <= 256 && sizes.large_threads <= sizes.threads && sizes.slots >= 1 &&
         sizes.large_slots >= 1 && sizes.slots <= 0x8000 && sizes.large_slots <= 0x8000 &&
         std::has_single_bit(sizes.ring_spans) && std::has_single_bit(sizes.large_ring_spans) &&
         sizes.communicators >= 1 && sizes.communicators <= 0xffff;
}

std::pair<dev_t, ino_t> identity_of(const struct stat& status) {
  return {status.st_dev, status.st_ino};
}

/// A new file of this size with every page in place and locked by us, or why not.
Result<OwnedDescriptor> create_file(const std::string& path, std::size_t bytes) {
  // Growing a file beyond the process's limit is SIGXFSZ, which ends the job.
  struct rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    return Error{"the process may write files of " + std::to_string(limit.rlim_cur >> 10) + " KiB only (ulimit -f)"};
  }
  OwnedDescriptor file(open_for_writing(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
  if (!file.is_open()) return Error{error_text(errno)};
  (void)lock_arena(file.fd());
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

/// Threads may be inside: each of their accesses, all atomic, is to the old page or to the new one. The system call
/// itself, since ThreadSanitizer takes the library's mmap for a plain write of all bytes, which theirs would race with.
void replace_by_private_memory(void* memory, std::size_t bytes) noexcept {
  constexpr int kFlags = MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  (void)::syscall(SYS_mmap, memory, bytes, PROT_READ | PROT_WRITE, kFlags, -1, off_t{0});
}

/// The first name that can be had, "" if there is none; `why` says why it is not the first of all.
Result<std::string> choose_path(const ArenaOptions& options, std::string& why) {
  for (const std::string& name : Arena::file_names(options.run_id, options.attempt, options.rank)) {
    const std::string path = options.directory + "/" + name;
    const ArenaName found = free_arena_name(path);
    if (!found.owner.empty()) {
      return Error{path + " belongs to " + found.owner +
                   ", which records the same run, attempt and rank as this process (" + std::to_string(::getpid()) +
                   "): give one of them another RANK or SMON_RT_RUN_ID"};
    }
    if (found.is_usable) return path;
    if (why.empty()) {
      why = found.why;
      log(LogLevel::kWarning, "the memory of this recording gets another name: " + why);
    }
  }
  return std::string();
}

}  // namespace

ArenaLayout::ArenaLayout(const ArenaSizes& sizes) {
  const std::size_t large = sizes.large_threads;
  const std::size_t small = sizes.threads - large;
  thread_records_offset = round_up(sizeof(ArenaHeader), kPageBytes);
  comm_records_offset = thread_records_offset + sizes.threads * sizeof(ThreadRecord);
  step_log_offset = round_up(comm_records_offset + sizes.communicators * sizeof(CommRecord), kCacheLineBytes);
  channel_records_offset = round_up(step_log_offset + StepLog::kCapacity * sizeof(StepTicks), kCacheLineBytes);
  slots_offset = round_up(channel_records_offset + sizes.channels * sizeof(ChannelRecord), kCacheLineBytes);
  const std::size_t slots = large * sizes.large_slots + small * sizes.slots;
  rings_offset = round_up(slots_offset + slots * sizeof(OpenSlot), kPageBytes);
  const std::size_t spans = large * sizes.large_ring_spans + small * sizes.ring_spans;
  bytes = round_up(rings_offset + spans * sizeof(Span), kPageBytes);
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

std::vector<std::string> Arena::file_names(const std::string& run_id, std::uint32_t attempt, std::int32_t rank) {
  constexpr int kOthers = 3;
  std::vector<std::string> names{file_name(run_id, attempt, rank)};
  for (int i = 1; i <= kOthers; ++i) names.push_back(names.front() + "." + std::to_string(i));
  return names;
}

Result<std::unique_ptr<Arena>> Arena::create(const ArenaOptions& options) {
  if (!is_valid(options.sizes)) return Error{"arena: sizes must be powers of two, at most 256 threads, 65,533 slots"};
  std::unique_ptr<Arena> arena(new Arena);
  arena->fork_count_ = fork_count();
  std::string why = options.directory.empty() ? "asked for" : "";
  if (!options.directory.empty()) {
    const Result<std::string> path = choose_path(options, why);
    if (!path) return path.error();
    if (!path->empty()) arena->make_file(*path, options.sizes, why);
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

void Arena::make_file(const std::string& path, const ArenaSizes& wanted, std::string& why) {
  const std::string other_name = why;
  why.clear();
  for (const ArenaSizes& sizes : candidate_sizes(wanted)) {
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
      return;
    }
    add_own_arena(status);
    header_ = new (memory) ArenaHeader;
    descriptor_ = std::move(*file);
    file_ = identity_of(status);
    path_ = path;
    sizes_ = sizes;
    bytes_ = layout.bytes;
    memory_ = "tmpfs" + (why.empty() ? "" : ", smaller rings: " + why) +
              (other_name.empty() ? "" : ", by another name: " + other_name);
    return;
  }
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
  header.channel_records_offset = layout.channel_records_offset;
  header.channel_record_bytes = sizeof(ChannelRecord);
  header.channel_record_count = sizes_.channels;
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
  for (std::uint32_t i = 0; i < sizes_.channels; ++i) {
    new (base + layout.channel_records_offset + i * sizeof(ChannelRecord)) ChannelRecord;
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
  if (descriptor_.is_ours()) unlock_arena(descriptor_.fd());
  descriptor_.close();
  remove_own_arena(file_);
}

void Arena::detach_in_child() noexcept {
  descriptor_.close();
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

std::span<ChannelRecord> Arena::channels() noexcept {
  auto* first = reinterpret_cast<std::byte*>(header_) + ArenaLayout(sizes_).channel_records_offset;
  return {reinterpret_cast<ChannelRecord*>(first), sizes_.channels};
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
