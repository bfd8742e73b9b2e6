#include "analysis/lane_buffer.h"

#include <sys/mman.h>

#include <new>

namespace smon_rt::analysis {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
constexpr std::size_t kCacheLineBytes = 64;

std::size_t round_up(std::size_t bytes, std::size_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

LaneBuffer::LaneBuffer(std::size_t count) : count_(count) {
  const std::size_t bytes = count * sizeof(double);
  const std::size_t alignment = bytes >= 2 * kHugePageBytes ? kHugePageBytes : kCacheLineBytes;
  const std::size_t padded_bytes = round_up(bytes == 0 ? 1 : bytes, alignment);
  values_.reset(static_cast<double*>(std::aligned_alloc(alignment, padded_bytes)));
  if (values_ == nullptr) throw std::bad_alloc();
  // Advice only: a kernel without huge pages ignores it.
  if (alignment == kHugePageBytes) madvise(values_.get(), padded_bytes, MADV_HUGEPAGE);
}

}  // namespace smon_rt::analysis
