#pragma once

#include <cstdint>
#include <optional>

namespace smon_rt {

/// How much longer sampled steps are than others, as a share of these.
struct Overhead {
  double ratio = 0;
  double low_ratio = 0;  // lower end of the 95 % interval
  std::uint32_t window_count = 0;
};

/// Beyond this, recording costs more than it may.
inline constexpr double kOverheadAlarmRatio = 0.01;

/// Finds out from a job's own step times what recording costs it. Each window of sampled steps is compared with the
/// steps right before and after it, so that a job that becomes slower or faster, whose first steps are slow, or that
/// saves a checkpoint now and then, does not look like one that recording slows down; the windows' differences are the
/// sample that the interval is of.
///
/// Threading: one thread. Cost: a few additions a step. The readers of traces do the same (trace/overhead.py).
class OverheadEstimate {
 public:
  static constexpr std::uint32_t kFewestWindows = 8;

  /// Steps in their order, without those of warm-up.
  void add(bool is_sampled, double duration_ns);
  /// Nothing before there are kFewestWindows.
  std::optional<Overhead> get() const;

 private:
  struct Run {
    double sum_ns = 0;
    std::uint64_t count = 0;
    double mean() const { return sum_ns / static_cast<double>(count); }
  };
  void finish_window();

  Run before_, window_, after_;  // unsampled, sampled, unsampled steps, one after the other
  std::uint32_t window_count_ = 0;
  double difference_mean_ns_ = 0;
  double difference_squares_ = 0;  // summed, of the distances to the mean (Welford)
  double base_sum_ns_ = 0;
};

}  // namespace smon_rt
