#include "cuda/nccl_kernel_times.h"

namespace smon_rt::nccl {

constinit std::atomic<std::int32_t> KernelTimes::captures_{0};

void KernelTimes::want(bool is_wanted) noexcept {
  is_asked_in_step_.store(false, std::memory_order_relaxed);
  is_wanted_.store(is_wanted, std::memory_order_relaxed);
}

void KernelTimes::step_begun(bool is_sampled, bool is_warmup, std::uint64_t asking_ops) noexcept {
  // Connections stay: once is enough for a process.
  if (asking_ops > 0) is_primed_.store(true, std::memory_order_relaxed);
  const bool is_asked = is_primed() ? is_sampled : is_warmup;
  is_asked_in_step_.store(is_asked, std::memory_order_relaxed);
}

void KernelTimes::capture_ended() noexcept {
  std::int32_t count = captures_.load(std::memory_order_relaxed);
  while (count > 0 && !captures_.compare_exchange_weak(count, count - 1, std::memory_order_seq_cst)) {
  }
}

bool KernelTimes::is_asked() const noexcept {
  return is_wanted() && is_asked_in_step_.load(std::memory_order_relaxed) && !is_capturing() && !is_spoilt();
}

}  // namespace smon_rt::nccl
