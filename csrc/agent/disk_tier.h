#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/disk_store.h"
#include "agent/slot_memory.h"
#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

struct DiskTierOptions {
  std::size_t keep = 2;  // complete steps
  /// Whether this much memory may be taken for copies that wait for the disk. Called on the disk's thread.
  std::function<Result<void>(std::uint64_t bytes)> check_budget = [](std::uint64_t) { return Result<void>(); };
  /// From here on a call of the disk is said to hang.
  std::chrono::nanoseconds hang_after = std::chrono::seconds(60);
  /// The destructor waits so long for the disk.
  std::chrono::nanoseconds end_within = std::chrono::seconds(2);
};

/// A rank's captured state of an agreed step.
struct DiskSource {
  std::string owner;
  std::string topology;
  std::shared_ptr<SlotMemory> memory;
  std::uint64_t content_hash = 0;
};

struct DiskTierStatus {
  Label durable;      // the newest that this agent has written; kInitialState: none
  std::string error;  // why nothing is written, or old steps are not removed; "" if all is well
  std::uint64_t written_bytes = 0;
  std::uint64_t write_ns = 0;
  std::uint64_t missed_steps = 0;  // came while one was being written
  std::uint64_t staged_bytes = 0;
};

/// Writes agreed steps to disk, and reads them at a recovery, by a thread of its own: a disk that is slow, full or
/// hangs holds no slot for longer than a copy of it takes, and stops nothing but this tier.
///
/// Threading: one thread, the owner's. Results come through `post`, called by the disk's thread, never after the
/// destructor has begun.
/// When full: one step at a time; one that comes meanwhile is missed, and counted.
/// Odd case: a thread that hangs in the disk is left alone, with all that it uses.
class DiskTier {
 public:
  using Post = std::function<void(std::function<void()>)>;
  using Clock = std::chrono::steady_clock;

  DiskTier(DiskStore store, DiskTierOptions options, Post post);
  ~DiskTier();
  DiskTier(const DiskTier&) = delete;
  DiskTier& operator=(const DiskTier&) = delete;

  /// False: missed. on_staged: the slots are not needed any more, whether or not the copy succeeded.
  bool write(Label label, std::vector<DiskSource> sources, std::function<void()> on_staged,
             std::function<void(Result<void>)> on_written);
  /// These wait for a step that is being written: who asks has a deadline of its own.
  void list(std::function<void(Result<DiskListing>)> on_listed);
  void load(std::string owner, Label label, std::function<void(Result<std::shared_ptr<SlotMemory>>)> on_loaded);
  void verify(DiskManifest manifest, DiskShard shard, std::function<void(Result<void>)> on_verified);

  DiskTierStatus status(Clock::time_point now) const;

 private:
  class Worker;
  std::shared_ptr<Worker> worker_;
};

}  // namespace smon_rt
