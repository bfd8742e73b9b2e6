#pragma once

#include <chrono>

namespace smon_rt {

struct DrainPaceOptions {
  // While rings fill fast. No producer ever wakes the thread: that would be a system call in the job's threads.
  std::chrono::nanoseconds shortest = std::chrono::microseconds(500);
  // While it is not known how fast they fill: half a large ring at 200,000 spans/s.
  std::chrono::nanoseconds cautious = std::chrono::milliseconds(10);
  // Each wake-up takes 10 to 20 µs, in which the processor also forgets some of the job's code: ten a second are 0.02 %
  // of a core, a hundred 0.2 %, more than a step that is not sampled may cost.
  std::chrono::nanoseconds longest = std::chrono::milliseconds(100);
  // While steps are not sampled, once it is known how fast rings fill: of such a step nothing comes but its times.
  std::chrono::nanoseconds quiet = std::chrono::milliseconds(500);
};

/// What a look found.
struct DrainLook {
  // Share of its room that was filled since the look before, of the ring, or whatever else is emptied here, that filled
  // most. What waits there from before says nothing: a look takes it when it is a quarter.
  double filled_ratio = 0;
  std::chrono::nanoseconds since_last{0};
  bool may_fill = true;  // false: no spans come before a step begins
};

/// How long the drain thread may sleep: so long that no ring fills by more than a quarter until the next look, if it
/// fills as fast as any ever did. A look leaves less than a quarter in it, so what fills faster than that for the first
/// time has half a ring more.
///
/// Threading: the drain thread alone.
class DrainPace {
 public:
  explicit DrainPace(DrainPaceOptions options = {}) : options_(options), sleep_(options.cautious) {}

  /// The sleep after a look. It grows from look to look, and shrinks at once.
  std::chrono::nanoseconds next(const DrainLook& look);

 private:
  std::chrono::nanoseconds limit(bool may_fill) const;

  const DrainPaceOptions options_;
  std::chrono::nanoseconds sleep_;
  double fastest_per_s_ = 0;  // share of a ring
};

}  // namespace smon_rt
