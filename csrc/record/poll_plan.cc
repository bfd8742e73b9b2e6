#include "record/poll_plan.h"

#include <algorithm>
#include <cstdlib>

namespace smon_rt {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;

}  // namespace

void CompletionForecast::note(std::uint32_t step, std::int64_t device_ns) {
  const std::int64_t gap_ns = device_ns - last_ns_;
  const bool is_new_step = !has_last_ || step != step_;
  place_ = is_new_step ? 0 : place_ + 1;
  step_ = step;
  last_ns_ = device_ns;
  has_last_ = true;
  if (place_ >= kMaxEvents) return;
  if (place_ >= gaps_.size()) {
    gaps_.push_back({gap_ns});
    return;
  }
  Gap& gap = gaps_[place_];
  gap.change_ns = std::abs(gap_ns - gap.gap_ns);
  gap.gap_ns = gap_ns;
}

std::optional<std::int64_t> CompletionForecast::next(std::uint32_t step, std::int64_t least_ns,
                                                     std::int64_t error_ns) const {
  if (!has_last_ || step != step_ || place_ + 1 >= gaps_.size()) return std::nullopt;
  const Gap& gap = gaps_[place_ + 1];
  if (gap.gap_ns < least_ns || gap.change_ns > error_ns) return std::nullopt;
  return last_ns_ + gap.gap_ns;
}

bool PollPlan::take_query(std::int64_t now_ns) {
  if (second_ns_ == INT64_MIN || now_ns - second_ns_ >= kSecondNs) {
    second_ns_ = now_ns;
    queries_in_second_ = 0;
  }
  if (queries_in_second_ >= options_.queries_per_s) return false;
  ++queries_in_second_;
  ++query_count_;
  return true;
}

void PollPlan::expect(std::uint32_t step, std::int64_t now_ns, std::int64_t ready_ns) {
  burst_step_ = step;
  burst_left_ = options_.burst_queries;
  const std::int64_t half_ns = options_.burst_ns * options_.burst_queries / 2;
  next_burst_ns_ = std::max(now_ns, ready_ns - half_ns);
}

void PollPlan::looked(std::int64_t now_ns, bool is_busy) {
  next_look_ns_ = now_ns + (is_busy ? options_.sampled_ns : options_.idle_ns);
}

void PollPlan::looked_in_burst(std::int64_t now_ns) {
  if (burst_left_ > 0) --burst_left_;
  next_burst_ns_ = now_ns + options_.burst_ns;
}

}  // namespace smon_rt
