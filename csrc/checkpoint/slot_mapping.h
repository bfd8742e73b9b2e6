#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// A slot's memfd in this process's memory, not in that of forked children, which would keep it alive.
///
/// Threading: made and freed by one thread; what it gives out is used by any meanwhile.
class SlotMapping {
 public:
  /// For writing all of it. Touches every page, so that captures need not: takes a while.
  static Result<std::shared_ptr<SlotMapping>> map_writable(OwnedDescriptor fd, std::uint64_t content_bytes);
  /// For reading what an agent gave.
  static Result<std::shared_ptr<SlotMapping>> map_readable(OwnedDescriptor fd, std::uint64_t content_bytes);
  ~SlotMapping();
  SlotMapping(const SlotMapping&) = delete;
  SlotMapping& operator=(const SlotMapping&) = delete;

  SlotHeader& header() const { return *reinterpret_cast<SlotHeader*>(bytes_.data()); }
  std::span<std::byte> content() const { return bytes_.subspan(kContentOffset, content_bytes_); }
  std::span<std::byte> bytes() const { return bytes_; }
  const OwnedDescriptor& fd() const { return fd_; }

  /// Of the last capture into it; training thread only.
  std::uint32_t written_epoch = 0;

 private:
  SlotMapping(OwnedDescriptor fd, std::span<std::byte> bytes, std::size_t content_bytes)
      : fd_(std::move(fd)), bytes_(bytes), content_bytes_(content_bytes) {}
  static Result<std::shared_ptr<SlotMapping>> map(OwnedDescriptor fd, std::uint64_t content_bytes, bool is_writable);

  OwnedDescriptor fd_;
  std::span<std::byte> bytes_;
  std::size_t content_bytes_;
};

}  // namespace smon_rt
