#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

namespace smon_rt {

/// Which state a copy is of; later ones are greater, since what a restart computes is newer than what it follows.
struct Label {
  std::uint32_t incarnation = 0;
  std::uint64_t step = 0;

  friend auto operator<=>(const Label&, const Label&) = default;
};

/// For people.
inline std::string to_text(Label label) {
  return "step " + std::to_string(label.step) + " of incarnation " + std::to_string(label.incarnation);
}

/// What every rank can make by itself, without a copy.
inline constexpr Label kInitialState{0, 0};

/// Chunks of content that are hashed, and sent, one by one.
inline constexpr std::size_t kChunkBytes = std::size_t{4} << 20;

inline constexpr std::uint64_t kSlotMagic = 0x31544f4c534e4f4d;  // "MONSLOT1"

/// The first page of a slot. A slot is one memfd that the agent made and both map:
///
///     0                SlotHeader
///     kContentOffset   content: the bytes of a safetensors file, header included, so that what goes to disk or out is
///                      these bytes and no others
///     hashes_offset()  XXH3-64 of each chunk of content, by the agent
///
/// One memfd a slot, not one a rank: a slot that a trainer of an older incarnation may still write into is given up and
/// made anew, and slots of two layouts exist side by side.
///
/// Threading: a seqlock. The trainer makes generation odd (release), writes, and makes it even (release) as the last of
/// all; readers take a slot only if it is even (acquire), and believe content only if its hashes agree. Bytes here may
/// come from a process that was killed at any point: nothing is trusted before it was checked against the file's size.
struct alignas(4096) SlotHeader {
  std::uint64_t magic;
  std::uint32_t format;  // 1
  std::uint32_t layout_epoch;
  std::atomic<std::uint64_t> generation;
  std::uint64_t step;
  std::uint32_t incarnation;
  std::uint32_t reserved;
  std::uint64_t content_bytes;
  // By the agent, when it has hashed: of all chunk hashes. 0 before.
  std::atomic<std::uint64_t> content_hash;
  char run_id[256];
  char owner[256];
  char topology[1024];
};
static_assert(sizeof(SlotHeader) == 4096);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

inline constexpr std::size_t kContentOffset = sizeof(SlotHeader);

constexpr std::size_t chunk_count(std::size_t content_bytes) noexcept {
  return (content_bytes + kChunkBytes - 1) / kChunkBytes;
}
constexpr std::size_t hashes_offset(std::size_t content_bytes) noexcept {
  return kContentOffset + (content_bytes + 4095) / 4096 * 4096;
}
/// Of the memfd.
constexpr std::size_t slot_file_bytes(std::size_t content_bytes) noexcept {
  return hashes_offset(content_bytes) + (chunk_count(content_bytes) * sizeof(std::uint64_t) + 4095) / 4096 * 4096;
}

}  // namespace smon_rt
