#include "analysis/p2p_matching.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>

namespace smon_rt::analysis {
namespace {

// Clocks of two machines agree no better than this in the published traces.
constexpr std::int64_t kClockToleranceNs = 50'000;

struct Transfer {
  Kind send, recv, compute;
  int peer_delta;  // stage of the receiver minus stage of the sender
};
constexpr std::array<Transfer, 2> kTransfers = {{
    {Kind::kForwardSend, Kind::kForwardRecv, Kind::kForwardCompute, +1},
    {Kind::kBackwardSend, Kind::kBackwardRecv, Kind::kBackwardCompute, -1},
}};

class Matcher {
 public:
  explicit Matcher(const LaneOps& lane) : lane_(lane), stage_count_(lane.stage_count()) {
    std::int32_t last_chunk = 0;
    for (OpIndex i = 0; i < lane.size(); ++i) last_chunk = std::max(last_chunk, lane.op(i).chunk);
    global_chunk_count_ = (std::int64_t{last_chunk} + 1) * stage_count_;
  }

  Result<P2pMatches> run() {
    for (const Transfer& transfer : kTransfers) {
      for (std::int32_t stage = 0; stage < stage_count_; ++stage) {
        if (auto done = match_computes(stage, transfer, transfer.send); !done) return done.error();
        if (auto done = match_computes(stage, transfer, transfer.recv); !done) return done.error();
      }
      for (std::int32_t stage = 0; stage < stage_count_; ++stage) {
        if (auto done = pair_with_peer(stage, transfer); !done) return done.error();
      }
      real_.clear();
    }
    return std::move(matches_);
  }

 private:
  // The sends or recvs that were launched: a recv that starts after the last compute of its direction has started, or
  // a send that ends before the first has ended, serves no compute ("type 1" no-op).
  std::vector<OpIndex> launched(std::int32_t stage, Kind compute, Kind kind, bool is_send) {
    std::int64_t last_start = std::numeric_limits<std::int64_t>::min();
    std::int64_t first_end = std::numeric_limits<std::int64_t>::max();
    for (OpIndex i : lane_.stage(stage).of(compute)) {
      last_start = std::max(last_start, lane_.recorded(i).start_ns);
      first_end = std::min(first_end, lane_.recorded(i).end_ns);
    }
    std::vector<OpIndex> result;
    for (OpIndex i : lane_.stage(stage).of(kind)) {
      const bool serves_compute = is_send ? lane_.recorded(i).end_ns >= first_end - kClockToleranceNs
                                          : lane_.recorded(i).start_ns <= last_start + kClockToleranceNs;
      (serves_compute ? result : matches_.alone).push_back(i);
    }
    return result;
  }

  // Why fewer are counted than were recorded.
  static std::string never_launched(std::size_t count, Kind compute, bool is_send) {
    if (count == 0) return "";
    return " (" + std::to_string(count) + " more " + (is_send ? "ended before its first " : "started after its last ") +
           std::string(kind_name(compute)) + " had)";
  }

  Result<void> match_computes(std::int32_t stage, const Transfer& transfer, Kind kind) {
    const bool is_send = kind == transfer.send;
    const std::vector<OpIndex> ops = launched(stage, transfer.compute, kind, is_send);
    const std::size_t compute_count = lane_.stage(stage).of(transfer.compute).size();
    const bool at_end = stage == 0 || stage == stage_count_ - 1;
    const bool one_fewer = ops.size() + 1 == compute_count;
    if (ops.size() != compute_count && !(at_end && (ops.empty() || one_fewer))) {
      return Error{"stage " + std::to_string(stage) + " has " + std::to_string(ops.size()) + " " +
                   std::string(kind_name(kind)) + " for " + std::to_string(compute_count) + " " +
                   std::string(kind_name(transfer.compute)) +
                   never_launched(lane_.stage(stage).of(kind).size() - ops.size(), transfer.compute, is_send) +
                   (at_end ? ": expected as many, one fewer, or none" : ": expected as many")};
    }
    // With virtual stages the first recv of stage 0 may be unrecorded: the model's input comes from no peer.
    std::size_t compute_seq_id = !is_send && one_fewer ? 1 : 0;
    const int gives_to = is_send ? transfer.peer_delta : -transfer.peer_delta;
    std::vector<OpIndex>& real = real_of(stage, is_send);
    for (OpIndex op : ops) {
      const OpIndex compute = lane_.compute(transfer.compute, stage, compute_seq_id++);
      const std::int64_t peer_chunk = std::int64_t{lane_.op(compute).global_chunk} + gives_to;
      const bool has_peer = peer_chunk >= 0 && peer_chunk < global_chunk_count_;
      matches_.matched.push_back({op, compute, has_peer});
      (has_peer ? real : matches_.alone).push_back(op);
    }
    return {};
  }

  Result<void> pair_with_peer(std::int32_t stage, const Transfer& transfer) {
    const std::int32_t peer = (stage + transfer.peer_delta + stage_count_) % stage_count_;
    const std::vector<OpIndex>& sends = real_of(stage, true);
    const std::vector<OpIndex>& recvs = real_of(peer, false);
    if (sends.size() != recvs.size()) {
      return Error{"stage " + std::to_string(stage) + " has " + std::to_string(sends.size()) + " " +
                   std::string(kind_name(transfer.send)) + " but stage " + std::to_string(peer) + " has " +
                   std::to_string(recvs.size()) + " " + std::string(kind_name(transfer.recv)) + " to pair with them"};
    }
    for (std::size_t i = 0; i < sends.size(); ++i) matches_.pairs.emplace_back(sends[i], recvs[i]);
    return {};
  }

  std::vector<OpIndex>& real_of(std::int32_t stage, bool is_send) {
    real_.resize(static_cast<std::size_t>(stage_count_));
    return real_[static_cast<std::size_t>(stage)][is_send ? 0 : 1];
  }

  const LaneOps& lane_;
  std::int32_t stage_count_;
  std::int64_t global_chunk_count_ = 0;
  P2pMatches matches_;
  std::vector<std::array<std::vector<OpIndex>, 2>>
      real_;  // per stage: sends and recvs of one direction that have a peer
};

}  // namespace

Result<P2pMatches> match_p2p(const LaneOps& lane) {
  return Matcher(lane).run();
}

}  // namespace smon_rt::analysis
