#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "analysis/op_columns.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// The part an op plays in the rules of our own ids.
enum class Role : std::uint8_t {
  kCompute,     // forward, backward, clip, optimizer: run one after the other, and have an identity of their own
  kHost,        // data loading, gc, eval, …: run between (or inside) computes, wherever they happen
  kP2p,         // sends and recvs of the pipeline
  kCollective,  // all other communication
  kNone,        // spans about others: step, startup, metric
};

Role role_of(Kind kind);

/// Collectives over the dp ranks of a stage.
inline constexpr std::array<Kind, 4> kDpCollectives = {Kind::kParamsAllGather, Kind::kGradsReduceScatter,
                                                       Kind::kGradsAllReduce, Kind::kSeparateGradsAllReduce};
bool is_dp_collective(Kind kind);

/// An op as its worker launched it. Times are the recorded ones, except around a compute that had others inside it.
struct Launch {
  std::uint32_t row = 0;
  Kind kind = Kind::kStep;
  bool is_in_stream = false;     // runs in the worker's compute stream: after the one before, before the one after
  bool was_inside = false;       // of the compute before it in the stream (of the optimizer after it)
  bool is_exposed_part = false;  // launched inside a compute that did not wait for it: what lasted longer than that
  std::int64_t start_ns = 0;
  std::int64_t end_ns = 0;
};

/// The ops of every worker and step in the order in which its host launched them.
///
/// What ran inside a compute (a collection, the loading of data, communication that the compute waited for) is taken
/// out of it and put behind it, or in front of an optimizer, so that no time counts twice: the compute keeps its own,
/// the rest of its span is theirs. Of communication inside a compute only the wait for late peers is taken out, from
/// the last thing that happened in the compute until the last of the group had started: how much of the remaining time
/// was the compute's own cannot be known. Without this, the last backward of a DDP job would last as long as its
/// slowest peer's. A host op during which a compute was launched is a span about it, and left out.
class LaunchOrder {
 public:
  /// `step_of_row` are indices below `step_count`. Rows are validated.
  LaunchOrder(const OpColumns& columns, const JobLayout& layout, std::span<const std::uint32_t> step_of_row,
              std::size_t step_count);

  std::size_t worker_count() const { return begin_.size() - 1; }
  /// Of one lane and stage; worker = lane · pp_size + stage, lane = step index · dp_size + dp_rank.
  std::span<const Launch> of(std::size_t worker) const {
    return {launches_.data() + begin_[worker], launches_.data() + begin_[worker + 1]};
  }
  std::size_t begin(std::size_t worker) const { return begin_[worker]; }
  /// Of all workers, one after the other.
  const std::vector<Launch>& launches() const { return launches_; }

 private:
  std::vector<Launch> launches_;
  std::vector<std::size_t> begin_;
};

}  // namespace smon_rt::analysis
