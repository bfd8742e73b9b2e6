#include "checkpoint/capture_layout.h"

#include <algorithm>
#include <string>
#include <utility>

namespace smon_rt {
namespace {

constexpr std::uint64_t kMaxContentBytes = std::uint64_t{1} << 46;
constexpr std::size_t kBatchBytes = std::size_t{1} << 20;

Error error_of(std::size_t range, const char* what) {
  return Error{"checkpoint layout: range " + std::to_string(range) + " " + what};
}

Result<void> check(std::span<const std::byte> header, std::span<const CaptureRange> ranges) {
  std::vector<std::pair<std::uint64_t, std::size_t>> order;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const CaptureRange& range = ranges[i];
    if (range.bytes == 0) continue;
    if (range.address == 0) return error_of(i, "has bytes and no address");
    if (range.offset < header.size()) return error_of(i, "lies within the header");
    if (range.bytes > kMaxContentBytes || range.offset > kMaxContentBytes - range.bytes) {
      return error_of(i, "ends beyond 64 TiB");
    }
    order.emplace_back(range.offset, i);
  }
  std::ranges::sort(order);
  for (std::size_t i = 1; i < order.size(); ++i) {
    const CaptureRange& before = ranges[order[i - 1].second];
    if (before.offset + before.bytes > order[i].first) return error_of(order[i].second, "overlaps another one");
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const CaptureLayout>> CaptureLayout::make(std::uint32_t epoch, std::span<const std::byte> header,
                                                                 std::span<const CaptureRange> ranges) {
  if (auto checked = check(header, ranges); !checked) return std::move(checked).error();
  auto layout = std::make_shared<CaptureLayout>();
  layout->epoch = epoch;
  layout->header.assign(header.begin(), header.end());
  layout->content_bytes = header.size();
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const CaptureRange& range = ranges[i];
    layout->addresses.push_back(range.address);
    if (range.bytes == 0) continue;
    layout->content_bytes = std::max(layout->content_bytes, range.offset + range.bytes);
    const bool is_gpu = range.device >= 0;
    auto& parts = is_gpu ? (range.is_volatile ? layout->gpu_volatile : layout->gpu_stable)
                         : (range.is_volatile ? layout->host_volatile : layout->host_stable);
    parts.push_back({i, range.offset, range.bytes});
    if (is_gpu && range.is_volatile) layout->gpu_volatile_bytes += range.bytes;
  }
  std::vector<HostCopyRange> sizes;
  for (const Part& part : layout->host_stable) sizes.push_back({nullptr, nullptr, part.bytes});
  layout->host_batches = split_into_batches(sizes, kBatchBytes);
  return std::shared_ptr<const CaptureLayout>(std::move(layout));
}

}  // namespace smon_rt
