#pragma once

#include <cstdint>
#include <vector>

#include "analysis/explained_delays.h"
#include "analysis/id_lanes.h"
#include "analysis/lane_buffer.h"
#include "analysis/member_excess.h"
#include "analysis/op_columns.h"
#include "analysis/op_graph.h"
#include "analysis/op_timing.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// How a trace becomes lanes and a graph.
enum class Rules : std::uint8_t {
  kReference,  // of the published analyzer: from launch order and times, all lanes alike (reference_graph.h)
  kIds,        // our own: from microbatch, chunk and group ids, lanes may differ (id_graph.h)
};

struct AnalyzeOptions {
  Rules rules = Rules::kReference;
  /// How far clocks of two hosts may be apart, for kIds. The reference has its own tolerance.
  double clock_bound_ns = 0;
};

/// A trace taken apart: who waits for whom, and what each op took by itself. Whatever is asked of a job starts here.
struct MeasuredJob {
  std::vector<std::int64_t> steps;
  std::vector<std::int32_t> worker_ranks;  // lowest recorded one, [dp_rank · pp_size + stage]; -1: none
  std::vector<double> step_ns;             // as recorded
  OpGraph graph;
  OpTiming timing;

  // By the rules of ids only.
  LaneBuffer host_gaps_ns;                       // host_gaps.h
  std::vector<ExplainedDelay> explained_delays;  // explained_delays.h
  std::vector<MemberExcess> member_excess;       // member_excess.h
  std::vector<LeftOutStep> left_out_steps;       // not in `steps`
  std::int64_t absent_op_count = 0;
};

TimingRules timing_rules_of(const AnalyzeOptions& options);

/// Errors: what validate_columns and the lanes and graph of the rules refuse.
Result<MeasuredJob> measure_job(const OpColumns& columns, const JobLayout& layout, const AnalyzeOptions& options);

}  // namespace smon_rt::analysis
