#pragma once

#include <memory>
#include <string>

#include "agent/disk_manifest.h"
#include "agent/slot_memory.h"
#include "base/result.h"

namespace smon_rt {

/// All of a file of text. An error without a message: it is not there.
Result<std::string> read_small_file(const std::string& path);

/// The state in a file as a slot, with its header and hashes. Refused if its size or the hash of any chunk is not what
/// the manifest says.
Result<std::shared_ptr<SlotMemory>> load_shard(const std::string& path, const DiskManifest& manifest,
                                               const DiskShard& shard);

/// The same, without keeping it.
Result<void> verify_shard(const std::string& path, const DiskShard& shard);

}  // namespace smon_rt
