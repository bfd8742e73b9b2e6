#include "record/drain_pace.h"

#include <algorithm>

namespace smon_rt {
namespace {

constexpr double kFullEnough = 0.25;

double seconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double>(time).count();
}

}  // namespace

std::chrono::nanoseconds DrainPace::limit(bool may_fill) const {
  // Before anything came, what will come may be fast.
  if (fastest_per_s_ == 0) return may_fill ? options_.cautious : options_.longest;
  const std::chrono::nanoseconds longest = may_fill ? options_.longest : options_.quiet;
  const double safe_s = kFullEnough / fastest_per_s_;
  if (safe_s >= seconds(longest)) return longest;
  const auto safe = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(safe_s));
  // Not below the cautious one: what is full now makes it shorter, not what once was.
  return std::max(safe, options_.cautious);
}

std::chrono::nanoseconds DrainPace::next(const DrainLook& look) {
  // A look that comes sooner than slept, as the first one, has seen a burst and no pace.
  const std::chrono::nanoseconds filled_for = std::max(look.since_last, sleep_);
  fastest_per_s_ = std::max(fastest_per_s_, look.filled_ratio / seconds(filled_for));
  // A quarter full after one sleep: the next sleep must not let it run over, whatever comes.
  if (look.filled_ratio >= 2 * kFullEnough) {
    sleep_ = options_.shortest;
  } else if (look.filled_ratio >= kFullEnough) {
    sleep_ = std::max(options_.shortest, std::min(sleep_, options_.cautious) / 4);
  } else {
    sleep_ = std::min(limit(look.may_fill), sleep_ + sleep_ / 2);
  }
  return sleep_;
}

}  // namespace smon_rt
