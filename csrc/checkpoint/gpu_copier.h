#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace smon_rt {

/// One range that is copied from a GPU's memory into a slot.
struct GpuCopyRange {
  std::uint64_t device_address = 0;
  std::byte* host = nullptr;
  std::size_t bytes = 0;
};

/// Copies from one GPU's memory to the host, on a stream of its own, ordered against the job's streams by events.
///
/// One capture at a time:
///
///     begin(stream, volatile)   training thread   stages volatile ranges on that stream, and records "produced" there
///     enqueue(stable)           helper thread     own stream: waits for "produced", copies in chunks, records "copied"
///     gate(stream)              training thread   before the optimizer: the stream waits for "copied"; fails unless
///                                                 enqueue has returned, since nobody waits for an unrecorded event
///     is_copied()               helper thread     polled
///
/// Threading: as said; begin, gate and is_copied never run while enqueue does. cancel() may.
/// Cost: nothing here waits for a GPU but cancel(), creates a context, or throws.
/// Errors: the driver's, cleared; a failed capture is cancelled by the caller.
///
/// Each implementation runs the suite of tests/contract/gpu_copier_contract.h.
class GpuCopier {
 public:
  virtual ~GpuCopier() = default;

  /// Stream, events and staging for the context that is current to the calling thread. Once. staging_bytes: of all
  /// volatile ranges of a capture together.
  virtual Result<void> open(std::size_t staging_bytes) = 0;

  /// Page-locks a mapped slot, in pieces of at most 64 GiB. A range that cannot be is copied all the same, slower.
  virtual Result<void> register_host(std::span<std::byte> range) = 0;
  /// Before the range is unmapped.
  virtual void unregister_host(std::span<std::byte> range) noexcept = 0;

  /// Fails while the stream is captured into a graph, and while copies of the last capture are still under way.
  virtual Result<void> begin(std::uint64_t producer_stream, std::span<const GpuCopyRange> volatile_ranges) = 0;
  virtual Result<void> enqueue(std::span<const GpuCopyRange> stable_ranges) = 0;
  virtual Result<void> gate(std::uint64_t stream) = 0;
  virtual Result<bool> is_copied() = 0;

  /// How long streams stood still at the last gate, by events around it; 0 until that is known.
  virtual std::uint64_t gpu_wait_ns() noexcept = 0;

  /// Gives the capture up; afterwards nothing writes to the host ranges any more. Waits until deadline_ns of
  /// CLOCK_MONOTONIC: false if copies may still be running then, and the slot must not be used until another call says
  /// true. An enqueue that is under way, or comes later, fails.
  virtual bool cancel(std::int64_t deadline_ns) noexcept = 0;
};

/// In a process without a GPU: nothing can be copied from one.
class NullGpuCopier final : public GpuCopier {
 public:
  Result<void> open(std::size_t) override { return none(); }
  Result<void> register_host(std::span<std::byte>) override { return none(); }
  void unregister_host(std::span<std::byte>) noexcept override {}
  Result<void> begin(std::uint64_t, std::span<const GpuCopyRange>) override { return none(); }
  Result<void> enqueue(std::span<const GpuCopyRange>) override { return none(); }
  Result<void> gate(std::uint64_t) override { return none(); }
  Result<bool> is_copied() override { return none(); }
  std::uint64_t gpu_wait_ns() noexcept override { return 0; }
  bool cancel(std::int64_t) noexcept override { return true; }

 private:
  static Error none() { return Error{"this process has no GPU copier: tensors of a GPU are not captured"}; }
};

}  // namespace smon_rt
