#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/gpu_copier.h"
#include "fakes/fake_gpu.h"
#include "fakes/fake_gpu_streams.h"

namespace smon_rt {

/// GpuCopier on a FakeGpu. Each chunk is a step of kStream of its own, so that a test can stop in the middle of a copy,
/// and run the optimizer's kernel there.
class FakeGpuCopier final : public GpuCopier {
 public:
  static constexpr std::uint64_t kStream = 0xc0;  // the copier's own
  static constexpr std::size_t kFakeChunkBytes = 64;

  explicit FakeGpuCopier(FakeGpu& gpu) : gpu_(gpu) {}

  /// Runs in the helper thread, at the start of enqueue: to hold it up there.
  void set_before_enqueue(std::function<void()> call) { before_enqueue_ = std::move(call); }
  /// The next call of this function fails once: "open", "register_host", "begin", "enqueue", "gate", "is_copied".
  void fail_next(const std::string& function);
  /// Plants the fault that a gate is to prevent: streams wait for nothing.
  void set_gates_nothing(bool gates_nothing) { gates_nothing_ = gates_nothing; }
  std::size_t registered_bytes() const;

  Result<void> open(std::size_t staging_bytes) override;
  Result<void> register_host(std::span<std::byte> range) override;
  void unregister_host(std::span<std::byte> range) noexcept override;
  Result<void> begin(std::uint64_t producer_stream, std::span<const GpuCopyRange> volatile_ranges) override;
  Result<void> enqueue(std::span<const GpuCopyRange> stable_ranges) override;
  Result<void> gate(std::uint64_t stream) override;
  Result<bool> is_copied() override;
  std::uint64_t gpu_wait_ns() noexcept override;
  bool cancel(std::int64_t deadline_ns) noexcept override;

 private:
  enum class State : std::uint8_t { kIdle, kBegun, kEnqueuing, kEnqueued };

  bool is_to_fail(const std::string& function);
  Result<void> check(std::span<const GpuCopyRange> ranges) const;
  void copy(const GpuCopyRange& range);

  FakeGpu& gpu_;
  mutable std::mutex mutex_;
  std::function<void()> before_enqueue_;
  std::set<std::string> failures_;
  std::map<std::byte*, std::size_t> registered_;
  std::atomic<bool> gates_nothing_{false};
  std::atomic<bool> is_cancelled_{false};
  State state_ = State::kIdle;
  std::uint64_t staging_ = 0;
  std::size_t staging_bytes_ = 0;
  std::uint64_t producer_ = 0;
  bool is_staging_ = false;  // of a capture that nobody enqueued
  std::vector<GpuCopyRange> staged_;
  FakeGpuStreams::Event produced_, copied_, wait_began_, wait_ended_;
};

}  // namespace smon_rt
