#pragma once

#include <optional>
#include <vector>

#include "analysis/lane_table.h"
#include "analysis/op_graph.h"
#include "analysis/op_timing.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// Who communicated with a worker that was not recorded may have waited for it, and nothing tells that wait from a slow
/// link. Takes such transfers out of `timing.complete` and `timing.counted`, so that they are no evidence of slow
/// communication and in nobody's yardstick:
/// - messages from or to such a worker, and those whose other end is a stage that was not recorded at all;
/// - collectives that it was part of. Where it sent messages to recorded workers and these came in time, by what it
///   must have done (missing_workers.h), it was not late for collectives either: these stay.
void mark_waits_for_missing(const LaneTable& table, const OpGraph& graph, OpTiming& timing);

/// Steps in nanoseconds of the job as recorded, where such transfers take no longer than they usually do: messages
/// what complete ones of their kind take, or the same message in the other lanes; collectives what complete ones of
/// their kind take, or the shortest kind of data-parallel collective of their stage. None where none is marked.
std::optional<std::vector<double>> without_waits_for_missing(const WhatIf& what_if);

}  // namespace smon_rt::analysis
