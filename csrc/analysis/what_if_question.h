#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "analysis/explained_delays.h"
#include "analysis/host_causes.h"
#include "analysis/member_excess.h"
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

/// Messages between two stages, of one dp rank or of all (-1), are as fast as other messages.
struct RepairedLink {
  int dp_rank = -1;
  int stage = 0;
  int peer_stage = 0;
};

/// Work of the host that takes no time, nor the launch delays that it explains.
struct RemovedWork {
  HostWork work = HostWork::kGc;
  HostPlace place;
};

enum class LaunchDelays {
  kRecorded,
  kExplained,  // only the parts that work of the host explains
  kNone,
};

enum class Microbatches {
  kAsRecorded,
  kEven,        // each as long as a usual one
  kRebalanced,  // dealt to the dp ranks anew, step by step (rebalance.h)
};

/// "What would the step take if …": everything that is said here holds at once. The rest stays as recorded.
struct Question {
  std::vector<Kind> ideal_kinds;  // take what ops of their kind take in the job without stragglers
  std::vector<DurationScale> scales;
  /// (dp_rank, stage) whose computes are divided by their own factor (compute_factors.h); with one dp rank by that of
  /// their stage.
  std::vector<std::pair<std::size_t, std::size_t>> fixed_workers;
  /// (dp_rank, stage) whose slow tp or cp members come when their others do (member_excess.h). Those of fixed workers
  /// do, too.
  std::vector<std::pair<std::size_t, std::size_t>> fixed_members;
  std::vector<std::size_t> fixed_stages;  // as fixed_workers
  std::vector<RepairedLink> fixed_links;  // comm_causes.h
  std::vector<std::size_t> fixed_groups;  // stages whose data-parallel groups are no slower than others'
  std::vector<RemovedWork> removed_work;  // host_causes.h
  /// (dp_rank, stage) whose launch delays become their peers'; only of the job with its delays.
  std::vector<std::pair<std::size_t, std::size_t>> prompt_workers;
  Microbatches microbatches = Microbatches::kAsRecorded;
  /// In the job that is asked for, and whether the one it is compared with has them. Where launch delays hold waits for
  /// what was not recorded, gains against a job without them are nearer the truth.
  LaunchDelays launch_delays = LaunchDelays::kRecorded;
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

/// Replays the job for each question. `explained`: what work of the host explains of its launch delays; `excess`: what
/// slow members of workers add to computes. Errors: a place outside the layout; no dp rank left; a factor that is no
/// positive number; drawn dp ranks where collectives join only a part of them, or more than memory holds; "stopped".
Result<std::vector<QuestionAnswer>> ask(const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                                        const std::vector<Question>& questions, const Progress& progress = {},
                                        std::span<const MemberExcess> excess = {});

}  // namespace smon_rt::analysis
