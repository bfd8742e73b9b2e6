#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace smon_rt {

/// What the drain thread may spend on asking whether events are ready.
struct PollOptions {
  // While a step is sampled, or was a second ago. One look finds out about a whole stream: 20 us of a core.
  std::int64_t sampled_ns = 1'000'000;
  // Instead, until a clock's bound is known to be less than `wide_bound_ns`: in the first steps little can be foretold,
  // and each bracket is as wide as the time between two looks. A query every so long; so many in all, since what is not
  // known after ten seconds will not be by this.
  std::int64_t wide_ns = 560'000;
  std::uint64_t wide_bound_ns = 100'000;
  std::uint32_t wide_queries = 20'000;
  // Else: nothing is recorded that would have to be dated.
  std::int64_t idle_ns = 100'000'000;
  // Around one completion a step that can be foretold: a bracket that is twenty times as narrow.
  std::int64_t burst_ns = 50'000;
  std::uint32_t burst_queries = 20;
  // And around one every so long while a clock's bound is wide.
  std::int64_t wide_burst_every_ns = 60'000'000;
  // Then also around completions that are foretold less surely, by up to so much: more queries, further apart.
  std::int64_t unsure_ns = 4'000'000;
  std::int64_t unsure_burst_every_ns = 100'000'000;
  std::uint32_t unsure_burst_queries = 40;
  // Whatever comes: a query is a call of the driver, which may share a lock with those of the job.
  std::uint32_t queries_per_s = 2000;
  // An event that is not ready by then never will be; its span has host times only.
  std::int64_t give_up_ns = 60'000'000'000;
};

/// When the next event of a stream will be ready, if steps are like each other: the time from the event before it is
/// what it was in the step before. In the first steps: if passes are, what it was for events of its sort.
///
/// Threading: one thread. When full: events far into a step are not foretold by the step before.
class CompletionForecast {
 public:
  /// The next event of the stream, the begin or end of a kind of span (`sort`), was ready at this device time.
  void note(std::uint32_t step, std::uint8_t sort, std::int64_t device_ns);

  struct Next {
    std::int64_t device_ns = 0;
    std::int64_t error_ns = 0;
  };
  /// The event after the last one, in that step: nothing if it cannot be told to within `error_ns`, or is less than
  /// `least_ns` after it.
  std::optional<Next> next(std::uint32_t step, std::uint8_t sort, std::int64_t least_ns, std::int64_t error_ns) const;

 private:
  static constexpr std::size_t kMaxEvents = 4096;
  struct Gap {
    std::int64_t gap_ns = INT64_MIN;
    std::int64_t change_ns = INT64_MAX;  // from the one before

    void note(std::int64_t new_gap_ns);
  };
  /// Of events that are alike: the last ones count most.
  struct Pace {
    std::int64_t mean_ns = 0;
    std::int64_t spread_ns = 0;
    std::uint32_t count = 0;

    void note(std::int64_t gap_ns);
  };
  std::vector<Gap> gaps_;          // by place in the step
  std::array<Pace, 256> of_sort_;  // within steps
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
  /// One that is off by more than half a burst is missed.
  static constexpr std::int64_t kSureNs = 300'000;

  explicit PollPlan(PollOptions options = {}) : options_(options), wide_left_(options.wide_queries) {}
  const PollOptions& options() const { return options_; }

  /// False: enough for this second.
  bool take_query(std::int64_t now_ns);

  /// Looks for one event from half a burst before `ready_ns` on, which may be off by `error_ns`.
  void expect(std::uint32_t step, std::int64_t now_ns, std::int64_t ready_ns, std::int64_t error_ns);
  /// Once a step, and more often while a clock's bound is wide.
  bool may_expect(std::uint32_t step, std::int64_t ready_ns, std::int64_t error_ns) const;
  /// How surely an event must be foretold.
  std::int64_t most_error_ns() const { return is_wide() ? options_.unsure_ns : kSureNs; }
  /// What was expected is ready.
  void end_burst() { burst_left_ = 0; }

  /// How far times of the clock that is known least may be off.
  void set_bound(std::uint64_t bound_ns);
  bool is_wide() const { return is_wide_ && wide_left_ > 0; }

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
  std::uint64_t looked_query_count_ = 0;  // at the last look
  bool is_wide_ = true;
  std::uint32_t wide_left_;
  std::int64_t next_burst_ns_ = 0;
  std::int64_t burst_pause_ns_ = 0;
  std::uint32_t burst_left_ = 0;
  std::optional<std::uint32_t> burst_step_;
  std::int64_t burst_ready_ns_ = INT64_MIN / 2;
  std::int64_t unsure_ready_ns_ = INT64_MIN / 2;
};

}  // namespace smon_rt
