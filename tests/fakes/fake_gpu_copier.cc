#include "fakes/fake_gpu_copier.h"

#include <time.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"

namespace smon_rt {

void FakeGpuCopier::fail_next(const std::string& function) {
  const std::lock_guard lock(mutex_);
  failures_.insert(function);
}

bool FakeGpuCopier::is_to_fail(const std::string& function) {
  const std::lock_guard lock(mutex_);
  return failures_.erase(function) != 0;
}

std::size_t FakeGpuCopier::registered_bytes() const {
  const std::lock_guard lock(mutex_);
  std::size_t bytes = 0;
  for (const auto& [start, length] : registered_) bytes += length;
  return bytes;
}

Result<void> FakeGpuCopier::open(std::size_t staging_bytes) {
  if (is_to_fail("open")) return Error{"the fake GPU was told to fail: open"};
  if (!gpu_.has_context()) return Error{"no GPU context is current to this thread"};
  const std::lock_guard lock(mutex_);
  if (staging_ != 0) return Error{"the copier is open already"};
  staging_ = gpu_.allocate(staging_bytes);
  staging_bytes_ = staging_bytes;
  return {};
}

Result<void> FakeGpuCopier::register_host(std::span<std::byte> range) {
  if (is_to_fail("register_host")) return Error{"the fake GPU was told to fail: register_host"};
  const std::lock_guard lock(mutex_);
  if (!registered_.emplace(range.data(), range.size()).second) return Error{"the range is page-locked already"};
  return {};
}

void FakeGpuCopier::unregister_host(std::span<std::byte> range) noexcept {
  const std::lock_guard lock(mutex_);
  registered_.erase(range.data());
}

Result<void> FakeGpuCopier::check(std::span<const GpuCopyRange> ranges) const {
  for (const GpuCopyRange& range : ranges) {
    if (range.bytes != 0 && gpu_.find(range.device_address, range.bytes) == nullptr) {
      return Error{"a range is not in the GPU's memory"};
    }
  }
  return {};
}

Result<void> FakeGpuCopier::begin(std::uint64_t producer_stream, std::span<const GpuCopyRange> volatile_ranges) {
  if (is_to_fail("begin")) return Error{"the fake GPU was told to fail: begin"};
  if (gpu_.is_capturing(producer_stream)) return Error{"the stream is captured into a graph"};
  if (auto checked = check(volatile_ranges); !checked) return checked;
  const std::lock_guard lock(mutex_);
  if (staging_ == 0) return Error{"the copier is not open"};
  if (state_ == State::kBegun || state_ == State::kEnqueuing) return Error{"a capture has begun already"};
  if (copied_ != nullptr && !gpu_.streams().has_come(copied_)) return Error{"the last capture is still being copied"};
  if (is_staging_ && producer_stream != producer_ && !gpu_.streams().has_come(produced_)) {
    return Error{"another stream is still staging the last capture"};
  }
  std::size_t offset = 0;
  std::vector<GpuCopyRange> staged;
  for (const GpuCopyRange& range : volatile_ranges) {
    if (range.bytes > staging_bytes_ - offset) return Error{"more volatile memory than there is staging for"};
    staged.push_back({staging_ + offset, range.host, range.bytes});
    offset += range.bytes;
  }
  for (std::size_t i = 0; i < staged.size(); ++i) {
    if (staged[i].bytes == 0) continue;
    gpu_.copy_on_device(producer_stream, staged[i].device_address, volatile_ranges[i].device_address, staged[i].bytes);
  }
  staged_ = std::move(staged);
  produced_ = gpu_.streams().record(producer_stream);
  copied_ = nullptr;
  producer_ = producer_stream;
  is_staging_ = true;
  is_cancelled_ = false;
  state_ = State::kBegun;
  return {};
}

void FakeGpuCopier::copy(const GpuCopyRange& range) {
  for (std::size_t offset = 0; offset < range.bytes && !is_cancelled_; offset += kFakeChunkBytes) {
    const std::size_t bytes = std::min(kFakeChunkBytes, range.bytes - offset);
    gpu_.copy_to_host(kStream, range.host + offset, range.device_address + offset, bytes);
  }
}

Result<void> FakeGpuCopier::enqueue(std::span<const GpuCopyRange> stable_ranges) {
  if (before_enqueue_) before_enqueue_();
  const bool is_failing = is_to_fail("enqueue");
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kBegun) return Error{"no capture has begun, or it was cancelled"};
    if (auto checked = check(stable_ranges); !checked) return checked;
    state_ = State::kEnqueuing;
    is_staging_ = false;
  }
  gpu_.streams().wait(kStream, produced_);
  for (const GpuCopyRange& range : staged_) copy(range);
  if (!is_failing) {
    for (const GpuCopyRange& range : stable_ranges) copy(range);
  }
  const std::lock_guard lock(mutex_);
  // Also of what was not enqueued whole: cancel() waits for what is.
  copied_ = gpu_.streams().record(kStream);
  state_ = State::kEnqueued;
  if (is_cancelled_) return Error{"the capture was cancelled"};
  if (!is_failing) return {};
  is_cancelled_ = true;
  return Error{"the fake GPU was told to fail: enqueue"};
}

Result<void> FakeGpuCopier::gate(std::uint64_t stream) {
  if (is_to_fail("gate")) return Error{"the fake GPU was told to fail: gate"};
  const std::lock_guard lock(mutex_);
  if (state_ != State::kEnqueued || is_cancelled_)
    return Error{"no copies were enqueued: there is nothing to wait for"};
  if (gpu_.is_capturing(stream)) return Error{"the stream is captured into a graph"};
  wait_began_ = gpu_.streams().record(stream);
  if (!gates_nothing_) gpu_.streams().wait(stream, copied_);
  wait_ended_ = gpu_.streams().record(stream);
  return {};
}

Result<bool> FakeGpuCopier::is_copied() {
  if (is_to_fail("is_copied")) return Error{"the fake GPU was told to fail: is_copied"};
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return Error{"the capture was cancelled"};
  return state_ == State::kEnqueued && gpu_.streams().has_come(copied_);
}

std::uint64_t FakeGpuCopier::gpu_wait_ns() noexcept {
  const std::lock_guard lock(mutex_);
  if (!gpu_.streams().has_come(wait_began_) || !gpu_.streams().has_come(wait_ended_)) return 0;
  return static_cast<std::uint64_t>(gpu_.streams().time_ns(wait_ended_) - gpu_.streams().time_ns(wait_began_));
}

bool FakeGpuCopier::cancel(std::int64_t deadline_ns) noexcept {
  is_cancelled_ = true;
  const timespec nap{0, 50'000};
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (state_ == State::kBegun) state_ = State::kIdle;
      if (state_ == State::kIdle) return true;
      if (state_ == State::kEnqueued && gpu_.streams().has_come(copied_)) {
        state_ = State::kIdle;
        return true;
      }
    }
    if (monotonic_ns() >= deadline_ns) return false;
    ::nanosleep(&nap, nullptr);
  }
}

}  // namespace smon_rt
