#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "agent/disk_manifest.h"
#include "agent/slot_memory.h"
#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// The calls that a disk may hang in, or refuse: tests put others here. As write(2) and fsync(2).
struct DiskCalls {
  std::function<ssize_t(int, const void*, std::size_t)> write;
  std::function<int(int)> sync;

  static DiskCalls of_system();
};

/// A rank's state to be written, which nobody changes meanwhile.
struct StagedShard {
  std::string owner;
  std::string topology;
  std::span<const std::byte> content;
  std::uint64_t content_hash = 0;  // as it was captured: bytes of another one are refused. 0: not known
};

struct DiskListing {
  std::vector<DiskManifest> steps;    // complete ones, oldest first
  std::vector<std::string> problems;  // manifests that cannot be read: one line each
};

/// The complete steps of one run in a directory, which other runs may use too:
///
///     <directory>/<run>/step-<incarnation>-<step>/<n>.safetensors   one a rank: content of its slot, verbatim
///                                                 manifest.json     last (disk_manifest.h)
///
/// Each file is written under another name, synced and renamed, and its folder synced. A step without a manifest is
/// none, whatever ended its writer; the next one that is complete removes it.
///
/// Threading: one thread at a time. Every function may hang as long as the disk does.
class DiskStore {
 public:
  DiskStore(const std::string& directory, std::string run_id, DiskCalls calls = DiskCalls::of_system());

  /// On disk when this returns. A step that cannot be written is removed again, so that it does not fill the disk.
  Result<void> write(Label label, std::span<const StagedShard> shards) const;
  /// Removes all but the newest `keep` complete steps, and what incomplete ones before these have left.
  Result<void> remove_older(std::size_t keep) const;

  /// Removes what writers that were killed have left of older steps than this.
  Result<void> remove_incomplete(Label before) const;

  /// By the manifests: files are looked at when they are loaded or verified. Nothing there: empty.
  Result<DiskListing> list() const;
  /// As a slot with its header and hashes; only if every chunk has its hash.
  Result<std::shared_ptr<SlotMemory>> load(const std::string& owner, Label label) const;
  Result<void> verify(const DiskManifest& manifest, const DiskShard& shard) const;

  const std::string& folder() const { return folder_; }

 private:
  std::string step_path(Label label) const;
  Result<void> write_files(Label label, const std::string& path, std::span<const StagedShard> shards) const;
  Result<void> write_file(const OwnedDescriptor& folder, const std::string& name,
                          std::span<const std::byte> bytes) const;
  Result<void> sync(const OwnedDescriptor& folder, const std::string& path) const;

  std::string run_id_;
  std::string directory_;
  std::string folder_;  // of the run
  DiskCalls calls_;
};

}  // namespace smon_rt
