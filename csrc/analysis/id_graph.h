#pragma once

#include "analysis/id_lanes.h"
#include "analysis/op_graph.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// Builds the one dependency graph of all lanes from our own ids. Op i of the graph is op i of the lanes' table.
///
/// By ids, whatever the times say (what contradicts them is an early start, and reported):
/// - the compute stream of a worker, one op after the other;
/// - recv of (microbatch, chunk) → the compute of both → its send.
/// By what every lane shows (a dependency that one lane contradicts, by more than `tolerance_ns`, is none):
/// - the last compute of its direction → a recv; for the first of a stage's backward transfers, the second-last forward
///   before the first backward. Transfers without a microbatch serve the computes around them;
/// - transfers of a kind, and collectives of a kind, one after the other where they did not overlap;
/// - the last compute of its chunk → a gather of parameters or reduction of gradients; without a chunk, and for every
///   other collective, what its host ran last before it. After the last backward also the collectives before it and the
///   last backward send;
/// - a gather → the next forward of its chunk; any `collective` → what its host ran next; all collectives → the clip or
///   optimizer after them.
/// - what a compute had inside it (launch_order.h) comes after the compute and before whatever waits for that.
/// A step ends with its last op.
///
/// Where the tolerance makes a circle of it, the graph without any.
/// Errors: a circle, its ops are named.
Result<OpGraph> build_graph(const IdLanes& lanes, double tolerance_ns);

}  // namespace smon_rt::analysis
