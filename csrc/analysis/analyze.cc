#include "analysis/analyze.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "analysis/cause_basis.h"
#include "analysis/comm_causes.h"
#include "analysis/compute_causes.h"
#include "analysis/compute_factors.h"
#include "analysis/host_causes.h"
#include "analysis/measured_job.h"
#include "analysis/member_causes.h"
#include "analysis/op_timing.h"
#include "analysis/waits_for_missing.h"

namespace smon_rt::analysis {
namespace {

constexpr int kContributionReplays = 6;

std::vector<double> ratios(const std::vector<double>& numerator, const std::vector<double>& denominator) {
  std::vector<double> result;
  for (std::size_t i = 0; i < numerator.size(); ++i) result.push_back(numerator[i] / denominator[i]);
  return result;
}

// Step times with the optimizer as their end, of the two jobs that all else is compared with.
struct References {
  std::vector<double> nodelay_ns;
  std::vector<double> ideal_ns;
};

References replay_references(const WhatIf& what_if, Analysis& result) {
  StepEnds nodelay = what_if.simulator().replay(what_if.nodelay());
  StepEnds ideal = what_if.simulator().replay(what_if.ideal());
  result.nodelay_step_ns = std::move(nodelay.last);
  result.ideal_step_ns = std::move(ideal.last);
  result.launch_slowdown = mean(result.base_step_ns) / mean(nodelay.optimizer);
  result.launch_slowdown_by_step = ratios(result.base_step_ns, nodelay.optimizer);
  result.slowdown = mean(result.nodelay_step_ns) / mean(ideal.optimizer);
  result.slowdown_by_step = ratios(result.nodelay_step_ns, ideal.optimizer);
  result.slowdown_interval = bootstrap_mean(result.nodelay_step_ns, result.steps);
  result.slowdown_interval.low /= mean(ideal.optimizer);
  result.slowdown_interval.high /= mean(ideal.optimizer);
  return {std::move(nodelay.optimizer), std::move(ideal.optimizer)};
}

void break_down(const WhatIf& what_if, const References& references, ReplayCounter& counter, Analysis& result) {
  result.slowdowns = slowdowns(what_if, references.ideal_ns, counter);
  result.launch_slowdowns = launch_slowdowns(what_if, references.nodelay_ns, counter);
  result.worker_slowdowns_by_step = worker_slowdowns_by_step(what_if, references.ideal_ns, counter);
  if (counter.stopped()) return;
  for (std::size_t dp_rank = 0; dp_rank < what_if.dp_size(); ++dp_rank) {
    for (std::size_t stage = 0; stage < what_if.pp_size(); ++stage) {
      result.worker_slowdowns.push_back(mean(result.worker_slowdowns_by_step[dp_rank * what_if.pp_size() + stage]));
      result.worker_slowdowns_min.push_back(
          std::min(result.slowdowns.dp_rank.ratios[dp_rank], result.slowdowns.stage.ratios[stage]));
    }
  }
}

void contribute(const WhatIf& what_if, ReplayCounter& counter, Analysis& result) {
  const std::size_t dp_size = what_if.dp_size();
  const std::size_t pp_size = what_if.pp_size();
  const LossRange range{mean(result.nodelay_step_ns), mean(result.ideal_step_ns)};
  const WorkerSet published = slowest_workers(result.worker_slowdowns_min, result.worker_ranks, dp_size, pp_size);
  const WorkerSet exact = slowest_workers(result.worker_slowdowns, result.worker_ranks, dp_size, pp_size);
  result.slowest_workers = contribution_of(what_if, published, range, counter);
  result.slowest_workers_exact =
      exact.workers() == published.workers() ? result.slowest_workers : contribution_of(what_if, exact, range, counter);
  WorkerSet last_stage(dp_size, pp_size);
  for (std::size_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) last_stage.add(dp_rank, pp_size - 1);
  result.last_stage = contribution_of(what_if, last_stage, range, counter);
}

void append(std::vector<CauseRemoval>& causes, std::vector<CauseRemoval> more) {
  std::move(more.begin(), more.end(), std::back_inserter(causes));
}

void find_causes(const WhatIf& what_if, const MeasuredJob& job, const AnalyzeOptions& options, ReplayCounter& counter,
                 Analysis& result) {
  const CauseBasis basis{.base_step_ns = result.base_step_ns,
                         .recorded_step_ns = what_if.simulator().replay(what_if.recorded()).last,
                         .nodelay_step_ns = result.nodelay_step_ns,
                         .keeps_launch_delays = options.rules == Rules::kIds};
  if (const auto without = without_waits_for_missing(what_if)) {
    result.knows_wait_for_missing = true;
    result.wait_for_missing_ns = mean(basis.recorded_step_ns) - mean(*without);
  }
  append(result.causes, member_causes(what_if, job.member_excess, basis, counter));
  append(result.causes,
         compute_causes(what_if, compute_factors(what_if, job.member_excess), basis, counter, job.member_excess));
  append(result.causes, comm_causes(what_if, basis, counter));
  append(result.causes, host_causes(what_if, job.explained_delays, basis, counter));
}

double worst_error(const std::vector<double>& ratios) {
  double worst = 0;
  for (double ratio : ratios) worst = std::max(worst, std::abs(ratio - 1));
  return worst;
}

// Replays the job with nothing but the host's gaps.
void explain(const WhatIf& what_if, const LaneBuffer& gaps, Analysis& result) {
  if (gaps.size() == 0) return;
  const std::vector<double> explained_ns = what_if.simulator().replay(what_if.nodelay_with(gaps)).last;
  result.fidelity.knows_unexplained = true;
  result.fidelity.unexplained_error_mean = std::abs(mean(result.base_step_ns) / mean(explained_ns) - 1);
  result.fidelity.unexplained_error_worst = worst_error(ratios(result.base_step_ns, explained_ns));
}

Fidelity fidelity_of(const Analysis& result, const OpTiming& timing, const TimingRules& timing_rules) {
  Fidelity fidelity = result.fidelity;
  fidelity.simulation_error_mean = std::abs(result.launch_slowdown - 1);
  fidelity.simulation_error_worst = worst_error(result.launch_slowdown_by_step);
  fidelity.early_start_count = timing.early_start_count;
  fidelity.worst_early_start_ns = timing.worst_early_start_ns;
  fidelity.negative_transfer_count = timing.negative_transfer_count;
  fidelity.worst_negative_transfer_ns = timing.worst_negative_transfer_ns;
  fidelity.clock_tolerance_ns = timing_rules.clock_tolerance_ns;
  return fidelity;
}

// The lanes and what was found while they were built; graph, timing and gaps stay with the job.
void take_job(MeasuredJob& job, Analysis& result) {
  result.steps = std::move(job.steps);
  result.worker_ranks = std::move(job.worker_ranks);
  result.base_step_ns = std::move(job.step_ns);
  result.left_out_steps = std::move(job.left_out_steps);
  result.absent_op_count = job.absent_op_count;
}

}  // namespace

Result<Analysis> analyze(const OpColumns& columns, const JobLayout& layout, const Progress& progress,
                         const AnalyzeOptions& options) {
  auto job = measure_job(columns, layout, options);
  if (!job) return job.error();
  Analysis result;
  result.op_count = static_cast<std::int64_t>(columns.size());
  take_job(*job, result);
  const WhatIf what_if(job->graph, job->timing, static_cast<std::size_t>(layout.dp_size),
                       static_cast<std::size_t>(layout.pp_size));
  ReplayCounter counter(progress, slowdown_replay_count(what_if) + kContributionReplays + kComputeCauseReplays +
                                      kMemberCauseReplays + kCommCauseReplays + kHostCauseReplays);
  const References references = replay_references(what_if, result);
  if (*std::min_element(references.ideal_ns.begin(), references.ideal_ns.end()) <= 0 ||
      *std::min_element(references.nodelay_ns.begin(), references.nodelay_ns.end()) <= 0) {
    return Error{"all ops of a step last 0 s: nothing to analyse"};
  }
  explain(what_if, job->host_gaps_ns, result);
  job->host_gaps_ns = LaneBuffer();
  break_down(what_if, references, counter, result);
  if (!counter.stopped()) contribute(what_if, counter, result);
  if (!counter.stopped()) find_causes(what_if, *job, options, counter, result);
  if (counter.stopped() || !counter.finish()) return Error{"stopped"};
  result.forward_backward = forward_backward(what_if);
  result.forward_medians_ns = worker_medians_ns(what_if, Kind::kForwardCompute);
  result.backward_medians_ns = worker_medians_ns(what_if, Kind::kBackwardCompute);
  result.fidelity = fidelity_of(result, job->timing, timing_rules_of(options));
  return result;
}

}  // namespace smon_rt::analysis
