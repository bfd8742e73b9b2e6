#pragma once

#include <utility>
#include <vector>

#include "analysis/lane_ops.h"
#include "analysis/op_graph.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// A pipeline send or recv with the compute it serves.
struct P2pMatch {
  OpIndex op = 0;
  OpIndex compute = 0;
  bool has_peer = true;  // false: recorded at an end of the pipeline, never launched ("type 2" no-op)
};

struct P2pMatches {
  std::vector<P2pMatch> matched;
  std::vector<std::pair<OpIndex, OpIndex>> pairs;  // send and recv of one transfer
  std::vector<OpIndex> alone;                      // no-ops of either type: recorded, but no transfer
};

/// Matches each send and recv of a lane with its compute and with its peer, from launch order and times alone, by the
/// rules of the published analyzer (whatif.md, "p2p matching"): recordings of Megatron contain sends and recvs that
/// were never launched, and carry no ids.
/// Errors: counts that no schedule explains; sends and recvs of neighbouring stages that do not pair up.
Result<P2pMatches> match_p2p(const LaneOps& lane);

}  // namespace smon_rt::analysis
