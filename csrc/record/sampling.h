#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

namespace smon_rt {

struct SamplingOptions {
  // Share of all steps that is sampled once the job runs. 10 % keeps whole-step overhead unmeasurable and still has
  // 4 steps of every 40. 0: none beyond always_steps; 1: every step.
  double sample_ratio = 0.10;
  // First steps of the process: sampled, marked and left out by the analysis (compilation, allocation, warm caches).
  std::uint32_t warmup_steps = 3;
  // Steps after warm-up that are sampled whatever the ratio, so that a short run has a verdict.
  std::uint32_t always_steps = 20;
  // Consecutive steps of a window: a step's neighbours tell whether it was typical.
  std::uint32_t window_steps = 4;
};

/// Which steps have their spans recorded. All ranks agree without a message: the answer follows from the step number,
/// the run id and the number that the process's first step has.
///
/// Steps are cut into blocks of window_steps / sample_ratio steps (40 by default); in each block one window of
/// window_steps at an offset hashed from (run id, block) is sampled, so that sampling never beats with logging,
/// evaluation, garbage collection or saving, which come at even intervals. Requested windows come on top.
///
/// Threading: request() from any thread (a lock among requests); decide() by the thread that begins steps, lock-free;
/// the rest is const. Cost: decide() some ten ns, once a step. When full: a request beyond kMaxRequests pending ones is
/// refused.
class Sampling {
 public:
  static constexpr std::size_t kMaxRequests = 16;

  Sampling(const SamplingOptions& options, std::string_view run_id);

  struct Decision {
    bool is_sampled = false;
    bool is_warmup = false;
  };

  /// For the step that now begins. Remembers the first step it is asked for, and where the job is.
  Decision decide(std::uint32_t step) noexcept;

  /// By ratio alone, without the first steps and requests.
  bool is_in_window(std::uint32_t step) const noexcept;

  enum class RequestResult { kAccepted, kLate, kFull, kInvalid };
  /// Samples [first_step, first_step + step_count). first_step < 0: from the next step on. A window whose first step
  /// has begun already is refused as a whole: half of it would agree with no other rank.
  RequestResult request(std::int64_t first_step, std::int32_t step_count) noexcept;

  /// The step begun last, -1 before the first.
  std::int64_t current_step() const noexcept { return current_step_.load(std::memory_order_relaxed); }

  const SamplingOptions& options() const noexcept { return options_; }

 private:
  bool is_requested(std::uint32_t step) const noexcept;

  SamplingOptions options_;
  std::uint64_t run_hash_;
  std::uint64_t ratio_ppb_;  // sample_ratio in 1e-9: blocks of any ratio start at whole steps without drift
  std::int64_t first_step_ = -1;
  std::atomic<std::int64_t> current_step_{-1};

  std::mutex request_mutex_;
  // first_step << 32 | step_count, 0: free. Written under the mutex, read without.
  std::array<std::atomic<std::uint64_t>, kMaxRequests> requests_{};
};

}  // namespace smon_rt
