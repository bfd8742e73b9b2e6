#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "cuda/driver_symbols.h"
#include "cuda/event_pool.h"
#include "cuda/torch_stream.h"
#include "record/gpu_timer.h"

namespace smon_rt::cuda {

struct CudaTimerOptions {
  // Events of a context. A span needs one or two from its begin until the GPU is through with it: enough for some
  // hundred microbatches that wait in the GPU's queue. 2,048 are made in some ms, once, by the drain thread.
  std::size_t events_per_context = 2048;
  const char* torch_library = kTorchLibrary;
};

/// Times of NVIDIA GPUs, by events of the driver.
///
/// Lives as long as the process: events stay with their context. Once the process exits the driver is left alone,
/// since it may have shut itself down: every call then fails here.
///
/// Threading and cost: as GpuTimer says. record() makes four calls into the driver.
class CudaTimer final : public GpuTimer {
 public:
  explicit CudaTimer(const DriverSymbols& driver, const CudaTimerOptions& options = {});
  /// For tests: frees the memory, and leaves the events to their contexts.
  ~CudaTimer() override;

  GpuContext current_context() noexcept override;
  GpuStream current_stream(GpuContext context) noexcept override;
  CaptureState capture_state(GpuStream stream) noexcept override;
  EventSlot record(GpuStream stream) noexcept override;
  bool retain(EventSlot slot) noexcept override;
  Result<void> adopt(GpuContext context) override;
  std::int32_t device_of(GpuContext context) noexcept override;
  std::string device_uuid(GpuContext context) override;
  GpuContext context_of(EventSlot slot) noexcept override;
  EventState query(EventSlot slot) noexcept override;
  Result<std::int64_t> elapsed_ns(EventSlot from, EventSlot to) override;
  void release(EventSlot slot) noexcept override;

 private:
  static constexpr std::size_t kMaxContexts = 16;

  std::size_t index_of(GpuContext context) const noexcept;  // kMaxContexts: not adopted
  EventPool* pool_of(EventSlot slot) const noexcept;
  Result<std::unique_ptr<EventPool>> make_pool(Handle context);

  const DriverSymbols driver_;
  const CudaTimerOptions options_;
  TorchStream torch_stream_;
  std::array<std::atomic<EventPool*>, kMaxContexts> pools_{};  // in order, never freed
};

}  // namespace smon_rt::cuda
