#include "analysis/measured_job.h"

#include <utility>

#include "analysis/host_gaps.h"
#include "analysis/id_graph.h"
#include "analysis/lane_table.h"
#include "analysis/lost_ops.h"
#include "analysis/reference_graph.h"
#include "analysis/waits_for_missing.h"

namespace smon_rt::analysis {
namespace {

void take_lanes(const LaneTable& table, MeasuredJob& job) {
  job.steps = table.steps();
  job.worker_ranks = table.worker_ranks();
  job.step_ns = table.step_times_ns();
}

Result<MeasuredJob> measure_by_reference(const OpColumns& columns, const JobLayout& layout,
                                         const TimingRules& timing_rules) {
  auto table = LaneTable::build(columns, layout);
  if (!table) return table.error();
  auto graph = build_reference_graph(table->template_ops(), layout.pp_size);
  if (!graph) return graph.error();
  MeasuredJob job;
  job.graph = std::move(*graph);
  take_lanes(*table, job);
  job.timing = measure_ops(*table, job.graph, timing_rules);
  return job;
}

Result<MeasuredJob> measure_by_ids(const OpColumns& columns, const JobLayout& layout, const TimingRules& timing_rules) {
  auto lanes = build_id_lanes(columns, layout);
  if (!lanes) return lanes.error();
  auto graph = build_graph(*lanes, timing_rules.clock_tolerance_ns);
  if (!graph) return graph.error();
  MeasuredJob job;
  job.graph = std::move(*graph);
  put_in_lost_ops(lanes->table, job.graph);
  take_lanes(lanes->table, job);
  job.left_out_steps = std::move(lanes->left_out_steps);
  job.absent_op_count = lanes->absent_op_count;
  job.timing = measure_ops(lanes->table, job.graph, timing_rules);
  mark_waits_for_missing(lanes->table, job.graph, job.timing);
  job.member_excess = std::move(lanes->member_excess);
  bound_by_durations(job.member_excess, job.timing);
  job.host_gaps_ns = host_gaps(*lanes, job.graph, job.timing);
  job.explained_delays = explained_delays(*lanes, job.timing);
  return job;
}

}  // namespace

TimingRules timing_rules_of(const AnalyzeOptions& options) {
  if (options.rules == Rules::kReference) return {};
  // Negative delays and transfers are kept, however large: only so does an unchanged replay give the recorded steps
  // back. Those that clocks do not explain are counted.
  return {.clock_tolerance_ns = options.clock_bound_ns, .drops_implausible = false, .counts_negative_transfers = true};
}

Result<MeasuredJob> measure_job(const OpColumns& columns, const JobLayout& layout, const AnalyzeOptions& options) {
  if (auto valid = validate_columns(columns, layout); !valid) return valid.error();
  const TimingRules timing_rules = timing_rules_of(options);
  return options.rules == Rules::kReference ? measure_by_reference(columns, layout, timing_rules)
                                            : measure_by_ids(columns, layout, timing_rules);
}

}  // namespace smon_rt::analysis
