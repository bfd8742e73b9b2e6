#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "analysis/lane_mask.h"
#include "analysis/op_graph.h"
#include "analysis/replay_program.h"

namespace smon_rt::analysis {

/// Where a replay takes the duration or launch delay of one op from, in nanoseconds.
struct OpValues {
  const double* lanes = nullptr;        // one value per lane; null: `constant` in every lane
  double constant = 0;                  // in every lane, or where `mask` is 0
  const std::uint64_t* mask = nullptr;  // per lane all ones or 0; null: `lanes` everywhere
};

/// What a replay assumes for every op of the graph.
struct Scenario {
  std::vector<OpValues> durations;
  std::vector<OpValues> launch_delays;  // empty: none in any lane
  // What values and masks point to where a scenario made them itself. A move keeps the pointers valid, a copy would
  // not.
  std::vector<std::vector<double>> owned_lanes;
  std::vector<std::vector<std::uint64_t>> owned_masks;

  Scenario() = default;
  Scenario(Scenario&&) = default;
  Scenario& operator=(Scenario&&) = default;
};

/// When the steps of a replay end, from the start of the step, in nanoseconds.
struct StepEnds {
  std::vector<double> optimizer;  // last optimizer, or what else ends the steps of this graph: the step time
  std::vector<double> last;       // last op of any kind
};

/// Replays the lanes of a job through its graph: each op starts when all that it waits for has ended (plus its launch
/// delay), a communication ends its own transfer after the last of its group has started.
///
/// Threading: const and without shared state, so replays may run side by side.
/// Cost: one pass over ops x lanes; lanes are processed in blocks of whole steps, so memory does not grow with the
/// number of steps.
class Simulator {
 public:
  /// `takes_part` says which lanes have which op; null: all have all. In a lane that lacks an op nobody waits for it
  /// and it takes no time. Borrowed.
  Simulator(const OpGraph& graph, std::size_t dp_size, std::size_t step_count, const LaneMask* takes_part = nullptr);

  /// Lanes of the same step wait for each other in groups that span data parallelism.
  StepEnds replay(const Scenario& scenario) const;

  /// Replays several scenarios block by block, so that what they share is read from memory once: with millions of
  /// ops, reading durations costs as much as replaying them.
  std::vector<StepEnds> replay_all(std::span<const Scenario> scenarios) const;

  /// Answers "what if only this one lane's dp rank ran `scenario`, and all others `ideal`" for every lane at once:
  /// the ideal ranks of a step that have the same ops are all alike, so one of them stands for the rest, and each lane
  /// is replayed beside a stand-in of its own for each such set of ranks: one where all have the same ops, and as many
  /// as there are other ranks where no two do, which is then brute force. Where ranks communicate in parts
  /// (Group::dp_part) alike are those that also share the same parts with the lane's rank, if that can be told; else it
  /// is brute force. `ideal` holds one duration per op. `scenario` must have no launch delays. Returns the step time of
  /// each lane, [step · dp_size + dp_rank].
  std::vector<double> replay_each_against_ideal(const Scenario& scenario, const std::vector<double>& ideal) const;

  std::size_t lane_count() const { return dp_size_ * step_count_; }
  std::size_t dp_size() const { return dp_size_; }

 private:
  std::size_t steps_per_block() const;
  /// Of the other dp ranks of each lane's step.
  struct StandInChoice {
    std::size_t count = 1;
    std::vector<std::uint32_t> lanes;  // [lane · count + i]: the lane whose ops that stand-in has; empty: each has all
  };
  StandInChoice choose_stand_ins() const;
  std::vector<std::uint32_t> stand_ins_of(std::size_t lane, const std::vector<std::uint32_t>& shapes) const;
  bool stand_for_all(std::size_t lane, const std::vector<std::uint32_t>& stand_in_of) const;

  ReplayProgram program_;
  std::size_t dp_size_;
  std::size_t step_count_;
  const LaneMask* takes_part_;  // null: every op in every lane
  bool is_last_the_end_;        // of the step, whatever its kind: both ends of StepEnds are one
};

}  // namespace smon_rt::analysis
