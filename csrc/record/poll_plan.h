#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace smon_rt {

/// What the drain thread may spend on asking whether events are ready.
struct PollOptions {
  // While a step is sampled, or was a second ago. One look finds out about a whole stream: 20 us of a core.
  std::int64_t sampled_ns = 1'000'000;
  // Else: nothing is recorded that would have to be dated.
  std::int64_t idle_ns = 100'000'000;
  // Around one completion a step that can be foretold: a bracket that is twenty times as narrow.
  std::int64_t burst_ns = 50'000;
  std::uint32_t burst_queries = 20;
  // Whatever comes: a query is a call of the driver, which may share a lock with those of the job.
  std::uint32_t queries_per_s = 2000;
  // An event that is not ready by then never will be; its span has host times only.
  std::int64_t give_up_ns = 60'000'000'000;
};

/// When the next event of a stream will be ready, if steps are like each other: the time from the event before it is
/// what it was in the step before.
///
/// Threading: one thread. When full: events far into a step are not foretold.
class CompletionForecast {
 public:
  /// The next event of the stream was ready at this device time.
  void note(std::uint32_t step, std::int64_t device_ns);

  /// Device time of the event after the last one, in that step: nothing if it cannot be told to within `error_ns`, or
  /// is less than `least_ns` after it.
  std::optional<std::int64_t> next(std::uint32_t step, std::int64_t least_ns, std::int64_t error_ns) const;

 private:
  static constexpr std::size_t kMaxEvents = 4096;
  struct Gap {
    std::int64_t gap_ns = 0;
    std::int64_t change_ns = INT64_MAX;  // from the step before
  };
  std::vector<Gap> gaps_;  // by place in the step
  std::size_t place_ = 0;
  std::uint32_t step_ = 0;
  std::int64_t last_ns_ = 0;
  bool has_last_ = false;
};

/// When to ask, and whether once more: the next look, a burst of looks, and how many queries a second are left.
///
/// Threading: one thread.
class PollPlan {
 public:
  explicit PollPlan(PollOptions options = {}) : options_(options) {}
  const PollOptions& options() const { return options_; }

  /// False: enough for this second.
  bool take_query(std::int64_t now_ns);

  /// Looks for one event from half a burst before `ready_ns` on, once a step.
  void expect(std::uint32_t step, std::int64_t now_ns, std::int64_t ready_ns);
  bool may_expect(std::uint32_t step) const { return !burst_step_ || *burst_step_ != step; }
  /// What was expected is ready.
  void end_burst() { burst_left_ = 0; }

  bool is_due(std::int64_t now_ns) const { return now_ns >= next_look_ns_; }
  bool is_burst_due(std::int64_t now_ns) const { return burst_left_ > 0 && now_ns >= next_burst_ns_; }
  std::int64_t next_ns() const { return burst_left_ > 0 ? std::min(next_look_ns_, next_burst_ns_) : next_look_ns_; }
  /// After a look at everything; after one at what was expected.
  void looked(std::int64_t now_ns, bool is_busy);
  void looked_in_burst(std::int64_t now_ns);

  std::uint64_t query_count() const { return query_count_; }

 private:
  const PollOptions options_;
  std::int64_t next_look_ns_ = INT64_MIN;
  std::int64_t second_ns_ = INT64_MIN;  // when it began
  std::uint32_t queries_in_second_ = 0;
  std::uint64_t query_count_ = 0;
  std::int64_t next_burst_ns_ = 0;
  std::uint32_t burst_left_ = 0;
  std::optional<std::uint32_t> burst_step_;
};

}  // namespace smon_rt
