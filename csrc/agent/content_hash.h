#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace smon_rt {

/// XXH3-64 of each chunk (kChunkBytes) of the content into `chunk_hashes`, chunk_count(content.size()) of them, and of
/// these together, which is returned: never 0, which says "not hashed".
std::uint64_t hash_content(std::span<const std::byte> content, std::span<std::uint64_t> chunk_hashes);

/// The same from hashes of chunks.
std::uint64_t hash_of_chunks(std::span<const std::uint64_t> chunk_hashes);

}  // namespace smon_rt
