#pragma once

#include <string>
#include <vector>

#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// Ratios of step times, one per name: of the mean step, and step by step.
struct Breakdown {
  std::vector<std::string> names;
  std::vector<double> ratios;
  std::vector<std::vector<double>> ratios_by_step;  // [name][step]
};

struct Breakdowns {
  Breakdown kind;
  Breakdown stage;
  Breakdown dp_rank;
};

/// Counts replays and lets the caller stop between them.
class ReplayCounter {
 public:
  ReplayCounter(const Progress& progress, int total) : progress_(progress), total_(total) {}
  /// False once the caller wants to stop.
  bool next();
  /// The same within a long replay, which counts as one.
  bool go_on();
  /// Says that all is done: how many replays it takes is not known before. False as in next().
  bool finish();
  bool stopped() const { return stopped_; }

 private:
  const Progress& progress_;
  int total_;
  int done_ = 0;
  bool stopped_ = false;
};

/// S_t, S_stage and S_dp of the paper: only that group's recorded durations put into the ideal job, as a ratio to the
/// ideal job. p2p kinds are merged to forward_pp_comm and backward_pp_comm.
Breakdowns slowdowns(const WhatIf& what_if, const std::vector<double>& ideal_step_ns, ReplayCounter& counter);

/// The same for launch delays: only that group's delays put into the job without delays. The first forward of stage
/// 0 and the first forward_recv of the other stages are a kind of their own here, first_op.
Breakdowns launch_slowdowns(const WhatIf& what_if, const std::vector<double>& nodelay_step_ns, ReplayCounter& counter);

/// S_w: only that worker's recorded durations in the ideal job, exactly; [dp_rank · pp_size + stage], by step.
std::vector<std::vector<double>> worker_slowdowns_by_step(const WhatIf& what_if,
                                                          const std::vector<double>& ideal_step_ns,
                                                          ReplayCounter& counter);

/// How many replays the three functions above make.
int slowdown_replay_count(const WhatIf& what_if);

}  // namespace smon_rt::analysis
