#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// What a slot's header says of the copy in it. From memory that another process writes.
struct SlotContent {
  Label label;
  std::uint64_t generation = 0;
  std::uint32_t layout_epoch = 0;
  std::uint64_t content_hash = 0;
  std::string run_id, owner, topology;
};

/// The memory of one slot (slot_format.h): a memfd, sealed so that nobody can make it shorter under those who have it
/// mapped, and mapped here.
///
/// Threading: const functions by any; what is in it may change at any time.
class SlotMemory {
 public:
  /// Takes all of its memory at once: later there may be none, and then a write would end the process.
  static Result<std::shared_ptr<SlotMemory>> make(std::uint64_t content_bytes);
  /// One that another agent made. Takes the descriptor.
  static Result<std::shared_ptr<SlotMemory>> adopt(OwnedDescriptor fd, std::uint64_t content_bytes);

  ~SlotMemory();
  SlotMemory(const SlotMemory&) = delete;
  SlotMemory& operator=(const SlotMemory&) = delete;

  int fd() const { return fd_.fd(); }
  /// The same memory, which can be read only.
  Result<OwnedDescriptor> open_for_reading() const;

  std::uint64_t content_bytes() const { return content_bytes_; }
  std::uint64_t file_bytes() const { return slot_file_bytes(content_bytes_); }
  std::span<const std::byte> content() const { return {data_ + kContentOffset, content_bytes_}; }

  /// None: there is no complete copy of this size in it.
  std::optional<SlotContent> read_header() const;
  /// The hash of all, computed from the bytes; none if the trainer wrote meanwhile.
  std::optional<std::uint64_t> compute_hash(std::uint64_t generation) const;
  /// Computes, and writes the hashes into the slot.
  std::optional<std::uint64_t> hash_and_store(std::uint64_t generation);

 private:
  SlotMemory(OwnedDescriptor fd, std::byte* data, std::uint64_t content_bytes)
      : fd_(std::move(fd)), data_(data), content_bytes_(content_bytes) {}
  static Result<std::shared_ptr<SlotMemory>> map(OwnedDescriptor fd, std::uint64_t content_bytes);
  SlotHeader& header() const { return *reinterpret_cast<SlotHeader*>(data_); }

  OwnedDescriptor fd_;
  std::byte* data_;
  std::uint64_t content_bytes_;
};

}  // namespace smon_rt
