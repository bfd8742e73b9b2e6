#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/clock_converter.h"
#include "format/span.h"
#include "record/comm_tracker.h"
#include "record/event_resolver.h"

namespace smon_rt {

/// Gives spans of communication the times of the kernels that did it, as the GPU's global timer has them, where a
/// CommTracker was told of those: from the first start to the last stop of all ops that belong to a span. A span whose
/// ops have not ended stays in its ring, and those behind it with it, within the limits that events have.
///
/// Where the timer of a channel was refused, an op's slot went to another one, or an op does not end in time, the span
/// keeps what it has.
///
/// Threading: the drain thread alone. Cost: one load a pass until ops ask for their kernels; then some 100 ns an op.
class CommTimes {
 public:
  // As the events of a GPU: what has not ended by then never will.
  static constexpr std::int64_t kGiveUpNs = 60'000'000'000;
  // NCCL says how many channels an op has, not always rightly: one that has been quiet for so long has ended.
  static constexpr std::int64_t kQuietNs = 50'000'000;
  // The timer of some GPUs ticks once a microsecond.
  static constexpr std::int64_t kTimerQuantumNs = 1'024;

  /// `find` may be null; the others outlive it.
  CommTimes(FindCommTracker find, const Clock& clock, const ClockConverter& converter, EventResolver& resolver);

  /// Takes note of ops that were begun, and of those that have ended. Whether any has not.
  bool look();

  /// Up to which index from `begin` on, `end` at most, the spans of a thread's ring may be written. `give_up`: all.
  std::uint64_t writable_until(std::span<const Span> ring, std::uint64_t begin, std::uint64_t end, bool give_up);

  /// Spans whose ops have ended get TimeSource::kNcclGlobaltimer and the timer's times, for EventResolver::resolve().
  void add_times(std::span<Span> spans);

  /// Whether an op has asked for its kernels, which costs bandwidth.
  bool has_asked() const { return has_asked_; }
  /// Spans that were to get such times, and have those of the host only.
  std::uint64_t host_only_spans() const { return host_only_spans_; }

 private:
  /// What a span of communication is known by.
  struct Key {
    std::uint16_t comm_id = kNoId;
    Kind kind = Kind::kStep;
    std::int32_t peer = kNoPeer;
    std::uint32_t comm_seq = 0;
    friend bool operator==(const Key&, const Key&) = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  struct Bracket {
    std::uint64_t device_ns;
    std::int64_t first_ticks, last_ticks;  // between which the host saw it
  };
  /// The ops of a span.
  struct Ops {
    std::vector<std::uint64_t> waiting;  // their numbers
    std::vector<Bracket> brackets;
    std::uint64_t start_ns = UINT64_MAX, stop_ns = 0;
    bool is_lost = false;
  };

  static Key key_of(const Span& span);
  const CommTracker* tracker() const { return find_ == nullptr ? nullptr : find_(); }
  /// Ops that ask for their kernels are noted. False: there are none.
  bool note_new(const CommTracker& tracker);
  void take(std::uint64_t number, const CommOp& op);
  void settle(const CommTracker& tracker, Ops& ops);
  enum class OpState : std::uint8_t { kRuns, kEnded, kLost };
  OpState state_of(const CommOp& op, std::int64_t now_ns) const;
  void forget_old(std::uint64_t end);

  const FindCommTracker find_;
  const Clock& clock_;
  const ClockConverter& converter_;
  EventResolver& resolver_;
  std::uint64_t next_ = 0;  // the first op that was not looked at
  std::uint64_t seen_kernel_ops_ = 0;
  std::uint64_t seen_end_ = 0;     // ops before it were there at the last look
  std::uint64_t settled_end_ = 0;  // and before it at the one before
  std::unordered_map<Key, Ops, KeyHash> spans_;
  std::deque<std::pair<std::uint64_t, Key>> order_;  // by the first op of each
  bool has_asked_ = false;
  std::uint64_t host_only_spans_ = 0;
};

}  // namespace smon_rt
