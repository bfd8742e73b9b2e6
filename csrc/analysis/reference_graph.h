#pragma once

#include <cstdint>
#include <span>

#include "analysis/lane_ops.h"
#include "analysis/op_graph.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// Builds the dependency graph of a lane by the rules of "Understanding Stragglers in Large Model Training Using
/// What-if Analysis" (OSDI 2025) and its published analyzer. Op i of the graph is recorded[i].
/// `recorded` is one lane: dp rank 0's ops of the first step, all stages. A job without data parallelism has no ops of
/// it; where they were recorded all the same, each is alone in its group.
/// Errors: ops that the rules do not know or cannot match, a circle. Each error names the ops.
Result<OpGraph> build_reference_graph(std::span<const RecordedOp> recorded, std::int32_t pp_size);

}  // namespace smon_rt::analysis
