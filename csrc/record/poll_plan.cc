#include "record/poll_plan.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace smon_rt {
namespace {

constexpr std::int64_t kSecondNs = 1'000'000'000;
// Of more streams each look leaves some for the next one.
constexpr std::int64_t kMostStreams = 4;

}  // namespace

void CompletionForecast::Gap::note(std::int64_t new_gap_ns) {
  if (gap_ns != INT64_MIN) change_ns = std::abs(new_gap_ns - gap_ns);
  gap_ns = new_gap_ns;
}

void CompletionForecast::Pace::note(std::int64_t gap_ns) {
  const std::int64_t off_ns = std::abs(gap_ns - mean_ns);
  if (count > 0) spread_ns = std::max(off_ns, spread_ns / 4 * 3);
  mean_ns += (gap_ns - mean_ns) / std::min<std::int64_t>(++count, 4);
}

void CompletionForecast::note(std::uint32_t step, std::uint8_t sort, std::int64_t device_ns) {
  const std::int64_t gap_ns = device_ns - last_ns_;
  const bool is_new_step = !has_last_ || step != step_;
  place_ = is_new_step ? 0 : place_ + 1;
  step_ = step;
  last_ns_ = device_ns;
  has_last_ = true;
  // The first of a step depends on more than the GPU.
  if (!is_new_step) of_sort_[sort].note(gap_ns);
  if (place_ >= kMaxEvents) return;
  if (place_ >= gaps_.size()) gaps_.emplace_back();
  gaps_[place_].note(gap_ns);
}

std::optional<CompletionForecast::Next> CompletionForecast::next(std::uint32_t step, std::uint8_t sort,
                                                                 std::int64_t least_ns, std::int64_t error_ns) const {
  if (!has_last_ || step != step_) return std::nullopt;
  Next next;
  std::int64_t gap_ns = 0;
  if (place_ + 1 < gaps_.size() && gaps_[place_ + 1].change_ns != INT64_MAX) {
    gap_ns = gaps_[place_ + 1].gap_ns;
    next.error_ns = gaps_[place_ + 1].change_ns;
  } else if (of_sort_[sort].count >= 2) {
    gap_ns = of_sort_[sort].mean_ns;
    next.error_ns = of_sort_[sort].spread_ns;
  } else {
    return std::nullopt;
  }
  if (next.error_ns > error_ns || gap_ns < least_ns) return std::nullopt;
  next.device_ns = last_ns_ + gap_ns;
  return next;
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

bool PollPlan::may_expect(std::uint32_t step, std::int64_t ready_ns, std::int64_t error_ns) const {
  if (error_ns > kSureNs) {
    const std::int64_t last_ns = std::max(burst_ready_ns_, unsure_ready_ns_);
    return is_wide() && burst_left_ == 0 && ready_ns - last_ns >= options_.unsure_burst_every_ns;
  }
  if (!burst_step_ || *burst_step_ != step) return true;
  return is_wide() && ready_ns - burst_ready_ns_ >= options_.wide_burst_every_ns;
}

void PollPlan::expect(std::uint32_t step, std::int64_t now_ns, std::int64_t ready_ns, std::int64_t error_ns) {
  const bool is_sure = error_ns <= kSureNs;
  const std::int64_t half_ns = options_.burst_ns * options_.burst_queries / 2;
  // What the clock is off by besides fits into half of the usual burst.
  const std::int64_t reach_ns = is_sure ? half_ns : error_ns + half_ns / 2;
  if (is_sure) {
    burst_step_ = step;
    burst_ready_ns_ = ready_ns;
  } else {
    unsure_ready_ns_ = ready_ns;
  }
  burst_left_ = is_sure ? options_.burst_queries : options_.unsure_burst_queries;
  burst_pause_ns_ = 2 * reach_ns / burst_left_;
  next_burst_ns_ = std::max(now_ns, ready_ns - reach_ns);
}

void PollPlan::set_bound(std::uint64_t bound_ns) {
  is_wide_ = bound_ns > options_.wide_bound_ns;
  if (!is_wide_) wide_left_ = options_.wide_queries;  // for the next clock, or if this one is stepped
}

void PollPlan::looked(std::int64_t now_ns, bool is_busy) {
  const std::uint64_t queries = query_count_ - std::exchange(looked_query_count_, query_count_);
  if (!is_busy || !is_wide()) {
    next_look_ns_ = now_ns + (is_busy ? options_.sampled_ns : options_.idle_ns);
    return;
  }
  wide_left_ -= static_cast<std::uint32_t>(std::min<std::uint64_t>(queries, wide_left_));
  // By the second, so that a look that was late is followed by one that is early, and a look at several streams leaves
  // as many queries as the second needs.
  const std::int64_t pause_ns =
      std::clamp<std::int64_t>(static_cast<std::int64_t>(queries), 1, kMostStreams) * options_.wide_ns;
  const std::int64_t planned_ns = next_look_ns_ == INT64_MIN ? now_ns : next_look_ns_;
  next_look_ns_ = std::max(planned_ns + pause_ns, now_ns + options_.wide_ns / 4);
}

void PollPlan::looked_in_burst(std::int64_t now_ns) {
  if (burst_left_ > 0) --burst_left_;
  next_burst_ns_ = now_ns + burst_pause_ns_;
}

}  // namespace smon_rt
