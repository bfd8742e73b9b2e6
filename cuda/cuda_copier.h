#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

#include "base/result.h"
#include "checkpoint/gpu_copier.h"
#include "cuda/driver_symbols.h"

namespace smon_rt::cuda {

struct CudaCopierOptions {
  // Of one copy: 32 MiB take less than a millisecond at the speed of a PCIe 5 slot, which is how long a copy of the job
  // in the same direction (loss.item()) may wait behind ours; smaller ones cost more calls.
  std::size_t chunk_bytes = std::size_t{32} << 20;
  // Of one call that page-locks: longer ones hold the kernel's lock of this process' memory for seconds.
  std::size_t registered_piece_bytes = std::size_t{64} << 30;
};

/// Copies from an NVIDIA GPU, by its driver: on a stream of its own, which does not wait for the default stream,
/// ordered by events.
///
/// Threading and cost: as GpuCopier says. A call for each chunk, and five for a gate.
/// When the process exits: every call fails, and the driver is left alone, as by CudaTimer.
class CudaCopier final : public GpuCopier {
 public:
  explicit CudaCopier(const DriverSymbols& driver, const CudaCopierOptions& options = {});
  /// Gives back what it has of the GPU, unless copies may still be running: that would wait for them.
  ~CudaCopier() override;
  CudaCopier(const CudaCopier&) = delete;
  CudaCopier& operator=(const CudaCopier&) = delete;

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
  // kEnqueued: "copied" is recorded, whether or not all was enqueued before it.
  enum class State : std::uint8_t { kIdle, kBegun, kEnqueuing, kEnqueued };
  enum class Progress : std::uint8_t { kRunning, kDone, kFailed };

  Result<void> make_all(std::size_t staging_bytes);
  void drop_all() noexcept;
  Status is_not_capturing(Handle stream) const noexcept;
  Result<void> stage(Handle stream, std::span<const GpuCopyRange> ranges);
  Status copy(std::span<const GpuCopyRange> ranges) const noexcept;
  std::size_t until_piece_ends(const std::byte* host) const noexcept;
  Progress progress() const noexcept;  // under mutex_

  const DriverSymbols driver_;
  const CudaCopierOptions options_;

  Handle context_ = nullptr;
  Handle stream_ = nullptr;
  Handle produced_ = nullptr;
  Handle copied_ = nullptr;
  Handle wait_began_ = nullptr;
  Handle wait_ended_ = nullptr;
  DevicePointer staging_ = 0;
  std::size_t staging_bytes_ = 0;

  // Never held while copies are enqueued, which may take long.
  mutable std::mutex mutex_;
  State state_ = State::kIdle;
  std::atomic<bool> is_cancelled_{false};
  bool is_copied_recorded_ = false;
  bool has_gated_ = false;
  Handle producer_ = nullptr;
  bool is_staging_ = false;  // of a capture that nobody enqueued: in producer_, up to produced_
  std::vector<GpuCopyRange> staged_;
  // What is page-locked, by its end: a copy must not reach from one piece into the next.
  mutable std::mutex pieces_mutex_;
  std::map<const std::byte*, std::size_t> pieces_;
};

}  // namespace smon_rt::cuda
