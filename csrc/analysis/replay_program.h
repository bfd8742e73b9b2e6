#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/op_graph.h"

namespace smon_rt::analysis {

/// A graph flattened into the instructions of one replay, in an order that respects it. Ends of ops live in slots,
/// reused as soon as the last op that waits for them has started: a replay then works on a few hundred vectors that
/// stay in cache, however long the step is.
struct ReplayProgram {
  enum class Action : std::uint8_t {
    kRun,       // target = max(operands) + launch delay + duration
    kStart,     // target = max(operands) + launch delay; its group completes later
    kComplete,  // all members of the group have started: each slot becomes the end of its member
  };

  struct Instruction {
    Action action = Action::kRun;
    OpIndex op = 0;            // kRun, kStart
    std::uint32_t target = 0;  // kRun, kStart
    bool spans_dp = false;     // kComplete
    std::uint32_t parts = 0;   // kComplete: index into dp_parts, of those that span dp
    std::uint32_t first = 0;   // into `operands` (kRun, kStart) or `members` (kComplete)
    std::uint32_t count = 0;
  };

  struct Member {
    OpIndex op = 0;
    std::uint32_t slot = 0;
  };

  std::vector<Instruction> instructions;
  std::vector<std::uint32_t> operands;  // slots
  std::vector<Member> members;
  std::vector<std::vector<std::uint32_t>> dp_parts = {{}};  // Group::dp_part, each one once; the first: all ranks
  std::uint32_t slot_count = 0;
  std::vector<bool> ends_step;  // per op: its end may be the end of the step
  std::vector<bool> is_sink;    // per op: nothing waits for it

  std::span<const std::uint32_t> operands_of(const Instruction& i) const {
    return {operands.data() + i.first, i.count};
  }
  std::span<const Member> members_of(const Instruction& i) const { return {members.data() + i.first, i.count}; }
};

ReplayProgram compile(const OpGraph& graph);

}  // namespace smon_rt::analysis
