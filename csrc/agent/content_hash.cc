#include "agent/content_hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>

#include "checkpoint/slot_format.h"

namespace smon_rt {

std::uint64_t hash_content(std::span<const std::byte> content, std::span<std::uint64_t> chunk_hashes) {
  for (std::size_t i = 0; i < chunk_hashes.size(); ++i) {
    const std::size_t begin = i * kChunkBytes;
    chunk_hashes[i] = XXH3_64bits(content.data() + begin, std::min(kChunkBytes, content.size() - begin));
  }
  return hash_of_chunks(chunk_hashes);
}

std::uint64_t hash_of_chunks(std::span<const std::uint64_t> chunk_hashes) {
  return std::max<std::uint64_t>(1, XXH3_64bits(chunk_hashes.data(), chunk_hashes.size_bytes()));
}

}  // namespace smon_rt
