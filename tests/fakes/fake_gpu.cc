#include "fakes/fake_gpu.h"

#include <algorithm>

namespace smon_rt {

std::uint64_t FakeGpu::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::uint64_t address = next_address_;
  allocations_[address].resize(bytes);
  next_address_ += (bytes / 512 + 2) * 512;  // a hole behind each
  return address;
}

std::byte* FakeGpu::find(std::uint64_t address, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return nullptr;
  const auto& [start, content] = *--next;
  const std::uint64_t offset = address - start;
  if (offset > content.size() || bytes > content.size() - offset) return nullptr;
  return const_cast<std::byte*>(content.data()) + offset;
}

void FakeGpu::fill(std::uint64_t stream, std::uint64_t address, std::size_t bytes, std::byte value) {
  std::byte* at = find(address, bytes);
  streams_.launch(stream, [=] { std::fill_n(at, bytes, value); });
}

void FakeGpu::copy_to_host(std::uint64_t stream, std::byte* host, std::uint64_t address, std::size_t bytes) {
  const std::byte* from = find(address, bytes);
  streams_.launch(stream, [=] { std::copy_n(from, bytes, host); });
}

void FakeGpu::copy_on_device(std::uint64_t stream, std::uint64_t to, std::uint64_t from, std::size_t bytes) {
  std::byte* target = find(to, bytes);
  const std::byte* source = find(from, bytes);
  streams_.launch(stream, [=] { std::copy_n(source, bytes, target); });
}

void FakeGpu::write(std::uint64_t address, std::span<const std::byte> content) {
  std::ranges::copy(content, find(address, content.size()));
}

void FakeGpu::set_context(bool has_context) {
  const std::lock_guard lock(mutex_);
  has_context_ = has_context;
}

bool FakeGpu::has_context() const {
  const std::lock_guard lock(mutex_);
  return has_context_;
}

bool FakeGpu::free(std::uint64_t address) {
  const std::lock_guard lock(mutex_);
  return allocations_.erase(address) == 1;
}

bool FakeGpu::is_used() const {
  const std::lock_guard lock(mutex_);
  return !allocations_.empty();
}

void FakeGpu::reset() {
  const std::lock_guard lock(mutex_);
  streams_.reset();
  allocations_.clear();
  capturing_.clear();
  has_context_ = true;
}

void FakeGpu::set_capturing(std::uint64_t stream, bool is_capturing) {
  const std::lock_guard lock(mutex_);
  capturing_.erase(stream);
  if (is_capturing) capturing_.insert(stream);
}

bool FakeGpu::is_capturing(std::uint64_t stream) const {
  const std::lock_guard lock(mutex_);
  return capturing_.contains(stream);
}

}  // namespace smon_rt
