#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// One rank's state in a step on disk: its file has these bytes and no others.
struct DiskShard {
  std::string owner;
  std::string file;  // in the step's folder
  std::string topology;
  std::uint64_t content_bytes = 0;
  std::uint64_t content_hash = 0;
  std::vector<std::uint64_t> chunk_hashes;  // XXH3-64, one a chunk of kChunkBytes
};

/// What a complete step on disk has: manifest.json, written after all of its files, so that a step without one is none.
struct DiskManifest {
  std::string run_id;
  Label label;
  std::vector<DiskShard> shards;
};

/// Hashes are strings of 16 hexadecimal digits: many readers of JSON keep 53 bits of a number.
std::string encode_disk_manifest(const DiskManifest& manifest);

/// From any bytes. Refused as well: a name of a file that leads out of the folder, hashes that do not fit the size, or
/// each other, an owner named twice.
Result<DiskManifest> decode_disk_manifest(std::string_view text);

}  // namespace smon_rt
