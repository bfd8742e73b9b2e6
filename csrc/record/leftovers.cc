#include "record/leftovers.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/owned_descriptor.h"
#include "base/process_state.h"
#include "format/arena_view.h"
#include "format/trace_encoder.h"
#include "record/arena_owner.h"
#include "record/drain.h"
#include "record/open_for_writing.h"
#include "record/trace_tail.h"

namespace smon_rt {
namespace {

constexpr std::uint64_t kMaxArenaBytes = std::uint64_t{64} << 20;
constexpr std::size_t kMaxArenas = 4096;
constexpr std::int64_t kNsPerSecond = 1'000'000'000;

std::string error_text() {
  return std::generic_category().message(errno);
}

/// Nonblocking: whatever was put there under this name, opening it must not wait.
OwnedDescriptor open_file(const std::string& path, int flags) {
  return OwnedDescriptor(open_for_writing(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK));
}

/// A regular file of this user.
bool is_of_this_user(const OwnedDescriptor& file, struct stat* status) {
  return file.is_ours(status) && S_ISREG(status->st_mode) && status->st_uid == ::geteuid();
}

/// Held while an arena is merged.
class MergeLock {
 public:
  explicit MergeLock(int fd) : fd_(fd), is_held_(lock_arena(fd)) {}
  // Not left to closing the file: a child that was forked meanwhile has it open as well.
  ~MergeLock() {
    if (is_held_) unlock_arena(fd_);
  }
  MergeLock(const MergeLock&) = delete;
  MergeLock& operator=(const MergeLock&) = delete;
  bool is_held() const { return is_held_; }

 private:
  int fd_;
  bool is_held_;
};

Result<ArenaContents> read_arena_file(int fd, std::uint64_t size) {
  if (size > kMaxArenaBytes) return Error{"it is larger than any arena"};
  std::vector<std::byte> bytes(size);
  std::size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t count = ::pread(fd, bytes.data() + filled, bytes.size() - filled, static_cast<off_t>(filled));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    filled += static_cast<std::size_t>(count);
  }
  return read_arena(std::span(bytes).first(filled));
}

bool is_owner_alive(const ArenaProcess& process, const struct stat& status) {
  // Pids of before the last boot mean nothing.
  if (process.boot_id != boot_id()) return false;
  return is_arena_owner_alive(process.pid, process.start_ticks, status);
}

bool is_owner_alive(const ArenaFacts& facts, const struct stat& status) {
  return is_owner_alive({facts.pid, facts.process_start_ticks, facts.boot_id}, status);
}

/// Killed after they were written and before they left the log, steps are in both. Their starts may differ by how much
/// better the process knew its clocks than a single reading tells.
std::vector<StepTime> missing_steps(const ArenaContents& arena, const TraceTail& tail) {
  constexpr std::int64_t kSameStartNs = 1'000'000;
  std::vector<StepTime> missing;
  for (const StepTicks& step : arena.steps) {
    const std::int64_t start_ns = arena.facts.clock.to_monotonic_ns(step.start_ticks);
    const std::int64_t end_ns = arena.facts.clock.to_monotonic_ns(step.end_ticks);
    const auto [begin, end] = tail.steps.equal_range(step.step);
    const bool is_in_file = std::any_of(begin, end, [&](const auto& written) {
      return written.second - kSameStartNs <= start_ns && start_ns <= written.second + kSameStartNs;
    });
    if (is_in_file) continue;
    const auto duration_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(0, end_ns - start_ns));
    missing.push_back({step.step, start_ns, duration_ns, step.is_sampled, step.is_warmup});
  }
  return missing;
}

/// How far NCCL's channels had come; the file has them of a minute ago, if at all.
std::vector<TraceCommChannel> channels_of(const ArenaContents& arena) {
  std::vector<TraceCommChannel> channels;
  for (const ArenaChannel& channel : arena.channels) {
    const std::int64_t state_ns = channel.state_ticks == 0 ? 0 : arena.facts.clock.to_monotonic_ns(channel.state_ticks);
    channels.push_back({channel.communicator, channel.nccl_comm, static_cast<std::uint16_t>(channel.comm_id),
                        channel.channel, channel.is_send, channel.peer, channel.begun, channel.moved, channel.done,
                        channel.moved_bytes, channel.state, state_ns});
  }
  return channels;
}

/// The packets that the file lacks.
std::string encode_missing(const ArenaContents& arena, const TraceTail& tail, LeftoverCounts& counts) {
  std::string packets;
  const ArenaFacts& facts = arena.facts;
  TraceNames names;
  for (const ArenaCommunicator& communicator : arena.communicators) {
    if (communicator.comm_id > facts.settled_communicators && !tail.communicators.contains(communicator.comm_id)) {
      names.communicators.push_back({communicator.comm_id, communicator.name, communicator.dimension, {}});
    }
  }
  if (!names.communicators.empty()) append_names(packets, names);

  const std::vector<StepTime> steps = missing_steps(arena, tail);
  append_step_times(packets, steps);
  counts.merged_steps += steps.size();

  std::vector<Span> open;
  const std::int64_t last_ns = std::max({facts.clock.monotonic_ns, facts.drain_beat_ns, facts.watchdog_beat_ns});
  for (const ArenaThread& thread : arena.threads) {
    std::uint64_t first = thread.first_index;
    if (const auto known = tail.next_index.find(thread.ring_id); known != tail.next_index.end()) {
      first = std::clamp(known->second, first, first + thread.unread.size());
    }
    std::vector<Span> spans;
    for (const Span& span : std::span(thread.unread).subspan(first - thread.first_index)) {
      spans.push_back(in_nanoseconds(span, facts.clock));
    }
    append_spans(packets, thread.ring_id, first, spans);
    counts.merged_spans += spans.size();
    for (const OpenSpan& open_span : thread.open) {
      if (open_span.span.start == 0) continue;  // of a step that is not sampled
      Span span = in_nanoseconds(open_span.span, facts.clock);
      span.end = std::max(span.start, last_ns);
      span.flags |= span_flag::kAborted;
      open.push_back(span);
    }
  }
  if (!tail.has_open_spans) {
    append_spans(packets, kOpenSpansRing, 0, open);
    counts.merged_open_spans += open.size();
  }
  append_comm_channels(packets, channels_of(arena));
  append_losses(packets, facts.losses);
  // Killed after its last packet it lost nothing: the file stays as closed as it is.
  if (!tail.is_closed) {
    append_leftover(packets, {::getpid(), ::time(nullptr) * kNsPerSecond, facts.step, facts.phase});
  }
  return packets;
}

/// All of it or nothing.
Result<void> append_to(int fd, const std::string& path, std::uint64_t whole_bytes, std::string_view packets) {
  // A half packet at the end would swallow the beginning of what follows it.
  if (::ftruncate(fd, static_cast<off_t>(whole_bytes)) != 0) return Error{path + ": " + error_text()};
  while (!packets.empty()) {
    const ssize_t count = ::write(fd, packets.data(), packets.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const Error error{path + ": " + (count < 0 ? error_text() : "nothing more fits")};
      if (::ftruncate(fd, static_cast<off_t>(whole_bytes)) != 0) return Error{path + ": " + error_text()};
      return error;
    }
    packets.remove_prefix(static_cast<std::size_t>(count));
  }
  return {};
}

enum class Outcome { kMerged, kDropped, kKept, kAbsent, kGivenUp };

void note(LeftoverCounts& counts, const std::string& arena_path, const std::string& problem) {
  if (counts.problem.empty()) counts.problem = "leftover " + arena_path + ": " + problem;
}

/// `problem` says what was not as it should be, "" if nothing.
Outcome merge_into_trace(const ArenaContents& arena, LeftoverCounts& counts, std::string& problem) {
  const ArenaFacts& facts = arena.facts;
  const std::string& path = facts.trace_file;
  if (path.empty()) return Outcome::kDropped;  // nobody asked for a file
  if (!path.starts_with('/') || !path.ends_with(".smon")) {
    problem = "it names no trace file";
    return Outcome::kDropped;
  }
  const OwnedDescriptor file = open_file(path, O_RDWR | O_APPEND);
  if (!file.is_open()) {
    const int error_number = errno;
    problem = "cannot open " + path + ": " + std::generic_category().message(error_number);
    if (error_number != ENOENT) return Outcome::kKept;
    const std::string directory = path.substr(0, path.rfind('/') + 1);
    // Gone, or of a container or a mount that this process does not see: another start may.
    if (::access(directory.c_str(), F_OK) != 0 && errno == ENOENT) return Outcome::kAbsent;
    return ::access(directory.c_str(), W_OK) == 0 ? Outcome::kDropped : Outcome::kKept;  // deleted by its user
  }
  struct stat status{};
  if (!is_of_this_user(file, &status)) {
    problem = path + " is no file of this user";
    return Outcome::kDropped;
  }
  const Result<TraceTail> tail = read_trace_tail(file.fd(), path, facts.settled_bytes);
  if (!tail) {
    problem = tail.error().message;
    return Outcome::kDropped;
  }
  if (tail->identity.pid != facts.pid || tail->identity.boot_id != facts.boot_id || tail->identity.rank != facts.rank ||
      tail->identity.process_start_ticks != facts.process_start_ticks) {
    problem = path + " was recorded by another process";
    return Outcome::kDropped;
  }
  if (!facts.clock.is_valid) {
    problem = "its process died before it read its clocks";
    return Outcome::kDropped;
  }
  LeftoverCounts merged;
  const std::string packets = encode_missing(arena, *tail, merged);
  if (Result<void> appended = append_to(file.fd(), path, tail->whole_bytes, packets); !appended) {
    problem = appended.error().message;
    return Outcome::kKept;
  }
  counts.merged_spans += merged.merged_spans;
  counts.merged_open_spans += merged.merged_open_spans;
  counts.merged_steps += merged.merged_steps;
  if (!arena.problems.empty()) problem = arena.problems.front();
  return Outcome::kMerged;
}

/// Whether the first try to merge it was long ago; remembers the first one. The mark is a bit of its mode that means
/// nothing else, since the time alone could as well be that of its making: what is stored into a mapping changes none.
bool was_tried_long_ago(int fd, const struct stat& status, std::int64_t limit_s) {
  constexpr mode_t kTriedBit = S_IXUSR;
  if ((status.st_mode & kTriedBit) != 0) return ::time(nullptr) - status.st_mtime > limit_s;
  const timespec now[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
  if (::futimens(fd, now) == 0) (void)::fchmod(fd, (status.st_mode & 0777) | kTriedBit);
  return false;
}

/// Whether what is kept there stands in the way of jobs to come.
bool is_filling_up(int fd, double least_free_ratio) {
  struct statvfs room{};
  if (::fstatvfs(fd, &room) != 0 || room.f_blocks == 0) return false;  // a file system without an end
  return static_cast<double>(room.f_bavail) < least_free_ratio * static_cast<double>(room.f_blocks);
}

/// What could not be done now: whether it will be tried again.
Outcome kept_or_given_up(Outcome outcome, int fd, const struct stat& status, const LeftoverLimits& limits) {
  if (outcome == Outcome::kKept && was_tried_long_ago(fd, status, limits.retry_s)) return Outcome::kGivenUp;
  if (outcome != Outcome::kAbsent) return outcome;
  const bool is_over = is_filling_up(fd, limits.least_free_ratio) || was_tried_long_ago(fd, status, limits.absent_s);
  return is_over ? Outcome::kGivenUp : Outcome::kAbsent;
}

void say_given_up(const std::string& path, const ArenaContents& arena, const std::string& problem) {
  std::size_t spans = 0;
  for (const ArenaThread& thread : arena.threads) spans += thread.unread.size() + thread.open.size();
  log(LogLevel::kInfo, "leftover " + path + " of process " + std::to_string(arena.facts.pid) + ", rank " +
                           std::to_string(arena.facts.rank) + ", is removed: " + problem + "; lost are " +
                           std::to_string(spans) + " spans that were not written, and " +
                           std::to_string(arena.steps.size()) + " step times");
}

/// False for what a process left that was killed while it made its arena: nobody has to hear of that.
bool has_begun(int fd) {
  std::array<char, sizeof(kArenaMagic)> magic{};
  if (::pread(fd, magic.data(), magic.size(), 0) <= 0) return false;
  return std::ranges::any_of(magic, [](char byte) { return byte != 0; });
}

void merge_one(const std::string& path, const LeftoverLimits& limits, LeftoverCounts& counts) {
  const OwnedDescriptor file = open_file(path, O_RDWR);
  struct stat status{};
  if (!file.is_open() || !is_of_this_user(file, &status)) return;
  // Looked at before it is locked: an image that exec() replaced has no lock any more, and merges it itself.
  if (const auto now = read_arena_process(file.fd()); now && is_owner_alive(*now, status)) return;
  // The owner holds this lock as long as it lives, in whatever pid namespace; so does whoever merges it just now.
  const MergeLock lock(file.fd());
  if (!lock.is_held()) return;
  if (::fstat(file.fd(), &status) != 0 || status.st_nlink == 0) return;  // merged by another process meanwhile

  const Result<ArenaContents> arena = read_arena_file(file.fd(), static_cast<std::uint64_t>(status.st_size));
  if (!arena) {
    if (::time(nullptr) - std::max(status.st_mtime, status.st_ctime) < limits.unreadable_s) return;
    if (has_begun(file.fd())) note(counts, path, arena.error().message);
    ++counts.dropped_arenas;
    ::unlink(path.c_str());
    return;
  }
  if (is_owner_alive(arena->facts, status)) return;
  std::string problem;
  const Outcome outcome = kept_or_given_up(merge_into_trace(*arena, counts, problem), file.fd(), status, limits);
  // Nobody can do anything about what is given up, or about a directory that is not there: no warning.
  const bool is_worth_a_warning = outcome != Outcome::kGivenUp && outcome != Outcome::kAbsent;
  if (is_worth_a_warning && !problem.empty()) note(counts, path, problem);
  switch (outcome) {
    case Outcome::kMerged:
      ++counts.merged_arenas;
      break;
    case Outcome::kGivenUp:
      say_given_up(path, *arena, problem);
      ++counts.dropped_arenas;
      break;
    case Outcome::kDropped:
      ++counts.dropped_arenas;
      break;
    case Outcome::kKept:
    case Outcome::kAbsent:
      ++counts.kept_arenas;
      return;
  }
  ::unlink(path.c_str());
}

std::vector<std::string> arenas_in(const std::string& directory) {
  std::vector<std::string> paths;
  const std::string prefix = "smon-" + std::to_string(::geteuid()) + "-";
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(directory.c_str()), &::closedir);
  if (folder == nullptr) return paths;
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(prefix) && paths.size() < kMaxArenas) paths.push_back(directory + "/" + std::string(name));
  }
  std::ranges::sort(paths);
  return paths;
}

}  // namespace

LeftoverCounts merge_leftovers(const std::string& tmpfs_directory, const std::string& own_path,
                               const LeftoverLimits& limits) {
  LeftoverCounts counts;
  for (const std::string& path : arenas_in(tmpfs_directory)) {
    if (path != own_path) merge_one(path, limits, counts);
  }
  return counts;
}

std::optional<ArenaOwner> find_arena_owner(const std::string& arena_path) {
  const OwnedDescriptor file = open_file(arena_path, O_RDWR);
  struct stat status{};
  if (!file.is_open() || !is_of_this_user(file, &status)) return std::nullopt;
  const Result<ArenaContents> arena = read_arena_file(file.fd(), static_cast<std::uint64_t>(status.st_size));
  if (!arena) return std::nullopt;
  if (!is_owner_alive(arena->facts, status) && !is_arena_locked(file.fd())) return std::nullopt;
  return ArenaOwner{arena->facts.pid, arena->facts.trace_file};
}

bool is_in_directory(const std::string& file, const std::string& directory) {
  const std::size_t slash = file.rfind('/');
  if (slash == std::string::npos) return false;
  struct stat a{}, b{};
  return ::stat(file.substr(0, slash + 1).c_str(), &a) == 0 && ::stat(directory.c_str(), &b) == 0 &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

}  // namespace smon_rt
