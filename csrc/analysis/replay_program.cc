#include "analysis/replay_program.h"

#include <algorithm>
#include <utility>

namespace smon_rt::analysis {
namespace {

class Compiler {
 public:
  explicit Compiler(const OpGraph& graph)
      : graph_(graph), slot_of_(graph.size(), 0), readers_(graph.size(), 0), started_(graph.groups().size(), 0) {
    program_.ends_step.assign(graph.size(), false);
    program_.is_sink.assign(graph.size(), true);
    for (OpIndex op = 0; op < graph.size(); ++op) {
      program_.ends_step[op] = !graph.step_ends_with_optimizer() || graph.op(op).kind == Kind::kOptimizer;
      for (OpIndex before : graph.dependencies(op)) {
        ++readers_[before];
        program_.is_sink[before] = false;
      }
    }
  }

  ReplayProgram run() && {
    for (OpIndex op : graph_.order()) {
      // A group of one that stays inside its lane starts and completes at once.
      const bool waits_for_group = graph_.is_communication(op) && !is_alone(graph_.groups()[graph_.group_of(op)]);
      start(op, waits_for_group ? ReplayProgram::Action::kStart : ReplayProgram::Action::kRun);
      if (waits_for_group) {
        complete_if_all_started(graph_.group_of(op));
      } else {
        free_if_unread(op);
      }
    }
    return std::move(program_);
  }

 private:
  static bool is_alone(const Group& group) { return group.members.size() == 1 && !group.spans_dp; }

  void start(OpIndex op, ReplayProgram::Action action) {
    ReplayProgram::Instruction instruction;
    instruction.action = action;
    instruction.op = op;
    instruction.first = static_cast<std::uint32_t>(program_.operands.size());
    for (OpIndex before : graph_.dependencies(op)) program_.operands.push_back(slot_of_[before]);
    instruction.count = static_cast<std::uint32_t>(program_.operands.size()) - instruction.first;
    // Taken before the operands are given back: target and operands never share memory.
    instruction.target = slot_of_[op] = take_slot();
    program_.instructions.push_back(instruction);
    for (OpIndex before : graph_.dependencies(op)) {
      --readers_[before];
      free_if_unread(before);
    }
  }

  void complete_if_all_started(GroupIndex index) {
    const Group& group = graph_.groups()[index];
    if (++started_[index] < group.members.size()) return;
    ReplayProgram::Instruction instruction;
    instruction.action = ReplayProgram::Action::kComplete;
    instruction.spans_dp = group.spans_dp;
    instruction.parts = parts_of(group);
    instruction.first = static_cast<std::uint32_t>(program_.members.size());
    instruction.count = static_cast<std::uint32_t>(group.members.size());
    for (OpIndex member : group.members) program_.members.push_back({member, slot_of_[member]});
    program_.instructions.push_back(instruction);
    for (OpIndex member : group.members) free_if_unread(member);
  }

  std::uint32_t parts_of(const Group& group) {
    std::vector<std::vector<std::uint32_t>>& known = program_.dp_parts;
    const auto found = std::find(known.begin(), known.end(), group.dp_part);
    if (found != known.end()) return static_cast<std::uint32_t>(found - known.begin());
    known.push_back(group.dp_part);
    return static_cast<std::uint32_t>(known.size() - 1);
  }

  void free_if_unread(OpIndex op) {
    if (readers_[op] == 0) free_slots_.push_back(slot_of_[op]);
  }

  std::uint32_t take_slot() {
    if (free_slots_.empty()) return program_.slot_count++;
    const std::uint32_t slot = free_slots_.back();
    free_slots_.pop_back();
    return slot;
  }

  const OpGraph& graph_;
  ReplayProgram program_;
  std::vector<std::uint32_t> slot_of_;
  std::vector<std::uint32_t> readers_;
  std::vector<std::size_t> started_;
  std::vector<std::uint32_t> free_slots_;
};

}  // namespace

ReplayProgram compile(const OpGraph& graph) {
  return Compiler(graph).run();
}

}  // namespace smon_rt::analysis
