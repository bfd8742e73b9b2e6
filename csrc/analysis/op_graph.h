#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "format/kind.h"

namespace smon_rt::analysis {

using OpIndex = std::uint32_t;
using GroupIndex = std::uint32_t;
inline constexpr GroupIndex kNoGroup = std::numeric_limits<GroupIndex>::max();

/// One op of one lane: what runs once per (dp_rank, step).
struct Op {
  Kind kind = Kind::kStep;
  std::int32_t stage = 0;
  std::int32_t seq_id = 0;  // launch index among the ops of its kind and stage
  std::int32_t chunk = -1;
  std::int32_t global_chunk = -1;
  std::int32_t microbatch = -1;
};

/// "forward_recv 3 of stage 1": how error messages name an op.
std::string describe(const Op& op);

/// Ops that communicate with one another: all end their own transfer after the last of them has started.
struct Group {
  std::vector<OpIndex> members;
  bool spans_dp = false;  // the members of all dp ranks of the same step wait for each other too
  // Where not all of them do, but each some (sharding within replicas): dp ranks with the same number wait for each
  // other, [dp_rank]. Empty: all.
  std::vector<std::uint32_t> dp_part = {};

  /// True where the members of two dp ranks wait for each other.
  bool joins(std::size_t dp_rank, std::size_t other) const {
    return dp_rank == other || (spans_dp && (dp_part.empty() || dp_part[dp_rank] == dp_part[other]));
  }
};

/// The dependencies of one lane, the same for all lanes: who waits for whom, and who communicates with whom.
/// Both builders of graphs (reference rules, our own ids) yield this; the simulator knows neither builder.
/// Immutable, acyclic: made by OpGraphBuilder.
class OpGraph {
 public:
  std::size_t size() const { return ops_.size(); }
  const std::vector<Op>& ops() const { return ops_; }
  const Op& op(OpIndex index) const { return ops_[index]; }
  /// Ops that must have ended before `index` starts.
  std::span<const OpIndex> dependencies(OpIndex index) const {
    return {dependencies_.data() + dependency_begin_[index], dependencies_.data() + dependency_begin_[index + 1]};
  }
  const std::vector<Group>& groups() const { return groups_; }
  GroupIndex group_of(OpIndex index) const { return group_of_[index]; }
  bool is_communication(OpIndex index) const { return group_of_[index] != kNoGroup; }
  /// Ops in an order in which each comes after all that it waits for, its group's members' dependencies included.
  const std::vector<OpIndex>& order() const { return order_; }
  /// What ends the step: its last optimizer, as the published analyzer has it, or its last op of any kind.
  bool step_ends_with_optimizer() const { return step_ends_with_optimizer_; }

 private:
  friend class OpGraphBuilder;
  std::vector<Op> ops_;
  std::vector<std::uint32_t> dependency_begin_;
  std::vector<OpIndex> dependencies_;
  std::vector<Group> groups_;
  std::vector<GroupIndex> group_of_;
  std::vector<OpIndex> order_;
  bool step_ends_with_optimizer_ = true;
};

class OpGraphBuilder {
 public:
  OpIndex add_op(const Op& op);
  /// `op` starts only after `before` has ended. Repeated edges are kept once.
  void add_dependency(OpIndex op, OpIndex before);
  /// Each op of `chain` waits for the one before it.
  void add_chain(std::span<const OpIndex> chain);
  /// An op may be in one group only.
  void add_group(std::vector<OpIndex> members, bool spans_dp) { add_group(Group{std::move(members), spans_dp}); }
  void add_group(Group group);
  void end_step_with_any_op() { step_ends_with_optimizer_ = false; }

  const std::vector<Op>& ops() const { return ops_; }

  /// Errors: a cycle (its ops are named), an op in two groups.
  Result<OpGraph> build() &&;

 private:
  std::vector<Op> ops_;
  std::vector<std::vector<OpIndex>> dependencies_;
  std::vector<Group> groups_;
  bool step_ends_with_optimizer_ = true;
};

}  // namespace smon_rt::analysis
