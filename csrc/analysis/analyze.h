#pragma once

#include <cstdint>
#include <vector>

#include "analysis/cause.h"
#include "analysis/contributions.h"
#include "analysis/evidence.h"
#include "analysis/id_lanes.h"
#include "analysis/measured_job.h"
#include "analysis/op_columns.h"
#include "analysis/slowdowns.h"
#include "analysis/statistics.h"
#include "analysis/what_if.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// How far the replay can be trusted.
struct Fidelity {
  double simulation_error_mean = 0;   // |T_base / T_nodelay − 1| of the mean step
  double simulation_error_worst = 0;  // of the worst step
  // The same against a replay with the host's gaps between ops: what the graph does not explain. By the rules of ids
  // only.
  bool knows_unexplained = false;
  double unexplained_error_mean = 0;
  double unexplained_error_worst = 0;
  std::int64_t early_start_count = 0;
  double worst_early_start_ns = 0;
  std::int64_t negative_transfer_count = 0;  // by the rules of ids only
  double worst_negative_transfer_ns = 0;
  double clock_tolerance_ns = 0;  // what is off by less is in neither count
};

/// All that the paper's method says of a job. Step times in nanoseconds, one per step; workers are
/// [dp_rank · pp_size + stage].
struct Analysis {
  std::vector<std::int64_t> steps;
  std::int64_t op_count = 0;
  std::vector<std::int32_t> worker_ranks;

  std::vector<double> base_step_ns;     // as recorded
  std::vector<double> nodelay_step_ns;  // without launch delays, last op of any kind
  std::vector<double> ideal_step_ns;    // without stragglers, last op of any kind

  double slowdown = 0;
  Interval slowdown_interval;
  double launch_slowdown = 0;
  std::vector<double> slowdown_by_step;
  std::vector<double> launch_slowdown_by_step;
  Breakdowns slowdowns;
  Breakdowns launch_slowdowns;
  std::vector<double> worker_slowdowns;  // exact
  std::vector<std::vector<double>> worker_slowdowns_by_step;
  std::vector<double> worker_slowdowns_min;  // the published analyzer's min(S_dp, S_stage)

  Contribution slowest_workers;        // M_W as published: chosen by worker_slowdowns_min
  Contribution slowest_workers_exact;  // chosen by worker_slowdowns
  Contribution last_stage;             // M_S
  std::vector<CauseRemoval> causes;

  ForwardBackward forward_backward;
  std::vector<double> forward_medians_ns;
  std::vector<double> backward_medians_ns;
  Fidelity fidelity;

  // By the rules of ids only.
  std::vector<LeftOutStep> left_out_steps;  // not in `steps`
  std::int64_t absent_op_count = 0;
  /// What waits for workers that were not recorded take of the steps, in nanoseconds a step; known where some were not.
  bool knows_wait_for_missing = false;
  double wait_for_missing_ns = 0;
};

/// Analyses a trace.
/// Errors: what validate_columns and the lanes and graph of the rules refuse; "stopped" when `progress` says so.
Result<Analysis> analyze(const OpColumns& columns, const JobLayout& layout, const Progress& progress = {},
                         const AnalyzeOptions& options = {});

}  // namespace smon_rt::analysis
