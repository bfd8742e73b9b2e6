#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "analysis/what_if.h"
#include "base/result.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// Ops of one kind take that many times as long.
struct DurationScale {
  Kind kind = Kind::kForwardCompute;
  int dp_rank = -1;  // -1: of all
  int stage = -1;    // -1: of all
  double factor = 1;
};

enum class Microbatches {
  kAsRecorded,
  kEven,        // each as long as a usual one
  kRebalanced,  // dealt to the dp ranks anew, step by step (microbatch_factors.h)
};

/// "What would the step take if …": everything that is said here holds at once. The rest stays as recorded.
struct Question {
  std::vector<Kind> ideal_kinds;      // take what ops of their kind take in the job without stragglers
  std::vector<Kind> vanishing_kinds;  // take no time
  std::vector<DurationScale> scales;
  /// (dp_rank, stage) that compute no slower than the median of the other workers of their stage, kind by kind; where
  /// there is one dp rank, than that of the other stages.
  std::vector<std::pair<std::size_t, std::size_t>> fixed_workers;
  std::vector<std::size_t> fixed_stages;  // compute no slower than the median of the other stages
  Microbatches microbatches = Microbatches::kAsRecorded;
  /// Whether launch delays count, in the job that is asked for and in the one it is compared with. Where they hold
  /// waits for what was not recorded, gains against a job without them are nearer the truth.
  bool has_launch_delays = true;
  bool had_launch_delays = true;
  /// That many dp ranks leave the job, those that alone would take longest: nobody waits for them.
  std::size_t dropped_dp_count = 0;
  /// Dp ranks of the job, drawn from what was measured (lane_choice.h) when they are not as many as remain; 0: those.
  std::size_t dp_count = 0;
};

/// Step times in nanoseconds, one per step.
struct QuestionAnswer {
  std::vector<double> before_ns;  // the recording, replayed with or without launch delays
  std::vector<double> after_ns;   // mean over the draws where dp ranks are drawn
  std::vector<std::size_t> dropped_dp_ranks;
  std::size_t dp_count = 0;    // of the job of `after_ns`
  std::size_t draw_count = 0;  // 0: nothing is drawn
};

/// Replays the job for each question. Errors: a place outside the layout; no dp rank left; a factor that is no positive
/// number; drawn dp ranks where collectives join only a part of them, or more than memory holds; "stopped".
Result<std::vector<QuestionAnswer>> ask(const WhatIf& what_if, const std::vector<Question>& questions,
                                        const Progress& progress = {});

}  // namespace smon_rt::analysis
