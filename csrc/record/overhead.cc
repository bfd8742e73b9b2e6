#include "record/overhead.h"

#include <cmath>

namespace smon_rt {

void OverheadEstimate::add(bool is_sampled, double duration_ns) {
  if (is_sampled && after_.count > 0) finish_window();
  Run& run = is_sampled ? window_ : window_.count > 0 ? after_ : before_;
  run.sum_ns += duration_ns;
  ++run.count;
}

/// The next window begins: what came after the last one comes before it.
void OverheadEstimate::finish_window() {
  if (before_.count > 0) {
    // Both sides count alike, however long: so a steady drift cancels out.
    const double base_ns = (before_.mean() + after_.mean()) / 2;
    const double difference_ns = window_.mean() - base_ns;
    ++window_count_;
    const double distance = difference_ns - difference_mean_ns_;
    difference_mean_ns_ += distance / window_count_;
    difference_squares_ += distance * (difference_ns - difference_mean_ns_);
    base_sum_ns_ += base_ns;
  }
  before_ = after_;
  window_ = after_ = {};
}

std::optional<Overhead> OverheadEstimate::get() const {
  if (window_count_ < kFewestWindows || base_sum_ns_ <= 0) return std::nullopt;
  const double freedom = window_count_ - 1;
  // Student's t at 97.5 %, within 0.01 from 7 degrees of freedom on.
  const double t = 1.96 + 2.8 / freedom;
  const double error_ns = t * std::sqrt(difference_squares_ / freedom / window_count_);
  const double base_ns = base_sum_ns_ / window_count_;
  return Overhead{difference_mean_ns_ / base_ns, (difference_mean_ns_ - error_ns) / base_ns, window_count_};
}

}  // namespace smon_rt
