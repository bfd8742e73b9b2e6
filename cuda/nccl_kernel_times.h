#pragma once

#include <atomic>
#include <cstdint>

namespace smon_rt::nccl {

/// Whether NCCL is asked when its kernels run: only if the job wants that, in sampled steps, and never while a stream
/// is captured into a graph, each of whose launches would call back then. The first operation that asks connects 64
/// channels, twice, on the job's thread: that must fall into a step of the warm-up, which the analysis leaves out, or
/// nothing is asked.
///
/// Threading: any thread; steps begin and end one at a time.
class KernelTimes {
 public:
  void want(bool is_wanted) noexcept;
  bool is_wanted() const noexcept { return is_wanted_.load(std::memory_order_relaxed); }

  /// `asking_ops`: operations so far that asked.
  void step_begun(bool is_sampled, bool is_warmup, std::uint64_t asking_ops) noexcept;
  void step_ended() noexcept { is_asked_in_step_.store(false, std::memory_order_relaxed); }

  /// Of the process, whoever asks then.
  static void capture_begun() noexcept { captures_.fetch_add(1, std::memory_order_seq_cst); }
  static void capture_ended() noexcept;
  /// A captured operation came while is_asked(): whoever captures does not say so.
  void spoil() noexcept { is_spoilt_.store(true, std::memory_order_seq_cst); }
  bool is_spoilt() const noexcept { return is_spoilt_.load(std::memory_order_relaxed); }
  static bool is_capturing() noexcept { return captures_.load(std::memory_order_seq_cst) > 0; }
  bool is_primed() const noexcept { return is_primed_.load(std::memory_order_relaxed); }

  bool is_asked() const noexcept;

 private:
  std::atomic<bool> is_wanted_{false};
  std::atomic<bool> is_primed_{false};
  std::atomic<bool> is_spoilt_{false};
  std::atomic<bool> is_asked_in_step_{false};
  static constinit std::atomic<std::int32_t> captures_;
};

}  // namespace smon_rt::nccl
