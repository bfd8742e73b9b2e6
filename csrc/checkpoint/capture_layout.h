#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "checkpoint/copy_pool.h"

namespace smon_rt {

/// Where a part of a state lies: what smon_tensor_range says.
struct CaptureRange {
  std::uint64_t offset = 0;  // in the content
  std::uint64_t bytes = 0;
  std::uint64_t address = 0;
  std::int32_t device = -1;  // -1: the host
  bool is_volatile = false;
};

/// What is captured, checked and sorted by how it is copied. Immutable.
struct CaptureLayout {
  struct Part {
    std::size_t range = 0;  // in the order that addresses are given in
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  /// An error says which range is wrong.
  static Result<std::shared_ptr<const CaptureLayout>> make(std::uint32_t epoch, std::span<const std::byte> header,
                                                           std::span<const CaptureRange> ranges);

  std::uint32_t epoch = 0;
  std::vector<std::byte> header;
  std::uint64_t content_bytes = 0;
  std::vector<std::uint64_t> addresses;  // of all ranges, as they were given
  std::vector<Part> host_stable, host_volatile, gpu_stable, gpu_volatile;
  std::vector<CopyBatch> host_batches;  // of host_stable
  std::uint64_t gpu_volatile_bytes = 0;

  bool has_gpu() const { return !gpu_stable.empty() || !gpu_volatile.empty(); }
};

}  // namespace smon_rt
