#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/lane_buffer.h"
#include "analysis/lane_mask.h"
#include "analysis/measured_job.h"
#include "analysis/op_graph.h"
#include "analysis/simulator.h"

namespace smon_rt::analysis {

/// When every op of a replay starts and ends, [op · lane_count + lane], in nanoseconds from the start of the step. An
/// op that communicates starts when it is ready and ends with its own transfer, its wait for the others in between, as
/// it is recorded. Both are 0 in lanes that lack the op.
struct OpTimes {
  LaneBuffer starts_ns;
  LaneBuffer ends_ns;
  std::size_t lane_count = 0;

  const double* starts(OpIndex op) const { return starts_ns.data() + op * lane_count; }
  const double* ends(OpIndex op) const { return ends_ns.data() + op * lane_count; }
};

/// The replay of Simulator, with all of its times kept: for drawings, where Simulator keeps the ends of steps.
/// `takes_part` as there; null: every op in every lane.
/// Cost: 16 bytes an op and lane.
OpTimes replay_times(const OpGraph& graph, std::size_t dp_size, std::size_t step_count, const Scenario& scenario,
                     const LaneMask* takes_part = nullptr);

/// A job without stragglers, one row an op and lane that has it, lane by lane (step, then dp rank).
struct IdealTimeline {
  std::vector<std::int64_t> step;
  std::vector<std::int32_t> dp_rank;
  std::vector<std::int32_t> stage;
  std::vector<std::uint8_t> kind;
  std::vector<std::int32_t> seq_id;
  std::vector<std::int32_t> chunk;
  std::vector<std::int32_t> microbatch;
  std::vector<std::int64_t> start_ns;  // from the start of the step
  std::vector<std::int64_t> end_ns;
};

/// The replay from which `ideal` step times come: no launch delays, one duration a kind.
IdealTimeline ideal_timeline(const MeasuredJob& job, const JobLayout& layout);

}  // namespace smon_rt::analysis
