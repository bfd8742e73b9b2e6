#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock_converter.h"
#include "format/trace_records.h"
#include "record/arena.h"
#include "record/comm_tracker.h"

namespace smon_rt {

/// Takes what a CommTracker knows for the trace file: each op of a sampled step once, in their order; counts and
/// channels when they have changed.
///
/// An op is taken when it is over and has been quiet for a while, since a transfer may begin after another one has
/// ended; one that does not end, after a longer while, as far as it has come. Nothing is kept back for a crash: ops are
/// in the process's own memory, and the last seconds of them go with it. Channels are in the arena, for whoever asks
/// what hangs, so that the file needs them rarely.
///
/// Threading: the drain thread alone; the job's threads go on meanwhile. Cost: one load a pass; once a second some
/// 100 ns an op, of 4,096 at most.
/// When full: ops whose slot another op has got before they were taken are counted, whatever their step.
class CommCollector {
 public:
  // How long an op must be quiet to be over; also how long ops wait for others, so that a packet has many.
  static constexpr std::chrono::nanoseconds kQuiet = std::chrono::seconds(1);
  static constexpr std::chrono::nanoseconds kUnfinished = std::chrono::seconds(10);
  static constexpr std::chrono::nanoseconds kChannelsEvery = std::chrono::seconds(60);

  /// `find` may be null: there is never a tracker. Arena and clock outlive it.
  CommCollector(FindCommTracker find, Arena& arena, const ClockConverter& clock);

  /// Appends packets of the ops that are due, or of all that there are.
  void append_ops(std::string& out, std::int64_t now_ns, bool everything);
  /// Appends counts and channels if they have changed: channels at once, then once a minute, and at the end.
  void append_state(std::string& out, std::int64_t now_ns, bool everything);

  std::uint64_t overwritten_ops() const { return overwritten_ops_; }
  /// The part of the tracker's room for ops that was used between the last two looks.
  double filled_ratio() const { return filled_ratio_; }

 private:
  const CommTracker* tracker() const { return find_ == nullptr ? nullptr : find_(); }
  bool is_due(const CommOp& op, std::int64_t now_ns, std::uint64_t behind) const;
  TraceCommOp in_nanoseconds(std::uint64_t number, const CommOp& op) const;
  void take_ops(const CommTracker& tracker, std::uint64_t end, std::int64_t now_ns, bool everything);
  std::vector<TraceCommChannel> read_channels() const;

  const FindCommTracker find_;
  Arena& arena_;
  const ClockConverter& clock_;
  std::uint64_t next_ = 0;         // number of the first op that was not taken
  std::uint64_t seen_end_ = 0;     // ops before it were there at the last look
  std::uint64_t settled_end_ = 0;  // and before it at the one before
  std::int64_t last_take_ns_ = 0;
  double filled_ratio_ = 0;
  std::uint64_t overwritten_ops_ = 0;
  std::vector<TraceCommOp> ops_;
  TraceCommCounts written_counts_;
  std::vector<TraceCommChannel> written_channels_;
  std::int64_t channels_written_ns_ = 0;
};

}  // namespace smon_rt
