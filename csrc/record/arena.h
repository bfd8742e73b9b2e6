#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "format/in_flight.h"

namespace smon_rt {

/// Room for threads, open spans and rings. The first large_threads threads have the large sizes: the main thread, the
/// autograd thread, and the first others.
struct ArenaSizes {
  std::uint32_t threads = 64;
  std::uint32_t large_threads = 4;
  std::uint32_t large_ring_spans = 4096;  // 256 KiB: half of it takes a burst of 2,000 spans between two drains
  std::uint32_t ring_spans = 512;         // 32 KiB
  std::uint32_t large_slots = 1024;
  std::uint32_t slots = 64;
  std::uint32_t communicators = 256;
  std::uint32_t channels = 1024;  // of NCCL's communicators that have a network, each direction: 64 KiB

  std::uint32_t ring_spans_of(std::uint32_t thread) const {
    return thread < large_threads ? large_ring_spans : ring_spans;
  }
  std::uint32_t slots_of(std::uint32_t thread) const { return thread < large_threads ? large_slots : slots; }
};

struct ArenaOptions {
  std::string run_id = "run";
  std::uint32_t attempt = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::string directory = "/dev/shm";  // a tmpfs; "" for private memory
  ArenaSizes sizes;
};

/// The memory that rings and the in-flight table live in (layout: format/in_flight.h), as a file in tmpfs that outlives
/// the process: `smon-<uid>-<run>-<attempt>-<rank>`, mode 0600, reserved and prefaulted so that no store ever faults
/// for lack of room. Owned through a lock on the file as well as by pid and start time: arena_owner.h.
///
/// Threading: create and destroy on one thread; the tables have their own rules.
/// When full: smaller rings, then private memory, which works as well but dies with the process; memory() tells why.
/// Odd case: what another user left under our name is passed by: one of three further names, else private memory.
class Arena {
 public:
  /// Fails when a live process records as the same run, rank and attempt, and names both. The file of a dead one, or
  /// of an earlier image of this process, is kept aside as `<name>.dead-<pid>-<n>`, for whoever merges leftovers.
  static Result<std::unique_ptr<Arena>> create(const ArenaOptions& options);

  /// The name that create() gives the file if it can, without directory. Characters of the run id that a file name or a
  /// reader could stumble over become '_'.
  static std::string file_name(const std::string& run_id, std::uint32_t attempt, std::int32_t rank);

  /// All names that create() may give it, in the order that it tries them.
  static std::vector<std::string> file_names(const std::string& run_id, std::uint32_t attempt, std::int32_t rank);

  ~Arena() { close(); }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  ArenaHeader& header() noexcept { return *header_; }
  const ArenaHeader& header() const noexcept { return *header_; }
  std::span<ThreadRecord> threads() noexcept;
  std::span<CommRecord> communicators() noexcept;
  std::span<StepTicks> step_log() noexcept;
  std::span<ChannelRecord> channels() noexcept;
  std::span<OpenSlot> slots(std::uint32_t thread) noexcept;
  std::span<Span> ring(std::uint32_t thread) noexcept;

  const ArenaSizes& sizes() const noexcept { return sizes_; }
  std::size_t bytes() const noexcept { return bytes_; }
  /// Path of the file, "" for private memory.
  const std::string& path() const noexcept { return path_; }
  /// For the header of the trace: "tmpfs", "tmpfs, smaller rings: …", "private: …".
  const std::string& memory() const noexcept { return memory_; }

  /// The file that rings are drained to, for whoever finds the arena after a crash. Cut to the header's room.
  void set_trace_file(const std::string& path) noexcept;

  /// Unlinks the file and puts untouched private memory in the place of the mapping, which stays: a thread that was
  /// inside the recorder when it stopped writes there and hurts nobody. Does nothing in a forked child.
  void close() noexcept;

  /// In a forked child: puts private memory in the place of the mapping, so that no store of the child reaches the
  /// parent, and lets go of the file, so that it does not outlive the parent as locked. Callable from an atfork
  /// handler.
  void detach_in_child() noexcept;

 private:
  Arena() = default;
  void make_file(const std::string& path, const ArenaSizes& wanted, std::string& why);
  void lay_out(const ArenaOptions& options);

  ArenaHeader* header_ = nullptr;
  std::size_t bytes_ = 0;
  ArenaSizes sizes_;
  OwnedDescriptor descriptor_;
  std::pair<dev_t, ino_t> file_;
  std::string path_;
  std::string memory_;
  std::uint32_t fork_count_ = 0;
  bool is_closed_ = false;
};

/// Bytes that an arena of these sizes needs, and where its parts begin.
struct ArenaLayout {
  explicit ArenaLayout(const ArenaSizes& sizes);

  std::size_t thread_records_offset = 0;
  std::size_t comm_records_offset = 0;
  std::size_t step_log_offset = 0;
  std::size_t channel_records_offset = 0;
  std::size_t slots_offset = 0;
  std::size_t rings_offset = 0;
  std::size_t bytes = 0;
};

}  // namespace smon_rt
