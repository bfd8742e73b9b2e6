#include "analysis/op_graph.h"

#include <algorithm>
#include <utility>

namespace smon_rt::analysis {
namespace {

// The ops that must end before `op` can end: its own dependencies, and those of all members of its group, because
// none of a group ends before all have started. A cycle through a group is a deadlock just like one through edges.
template <typename Visit>
void for_each_blocker(const OpGraph& graph, OpIndex op, Visit visit) {
  if (!graph.is_communication(op)) {
    for (OpIndex before : graph.dependencies(op)) visit(before);
    return;
  }
  for (OpIndex member : graph.groups()[graph.group_of(op)].members) {
    for (OpIndex before : graph.dependencies(member)) visit(before);
  }
}

// Walks backwards from a blocked op along blocked ops until one repeats: those in between wait for each other.
std::string describe_cycle(const OpGraph& graph, const std::vector<bool>& ended) {
  std::vector<OpIndex> path;
  std::vector<std::int64_t> position(graph.size(), -1);
  OpIndex current = static_cast<OpIndex>(std::find(ended.begin(), ended.end(), false) - ended.begin());
  while (position[current] < 0) {
    position[current] = static_cast<std::int64_t>(path.size());
    path.push_back(current);
    OpIndex next = current;
    for_each_blocker(graph, current, [&](OpIndex before) {
      if (!ended[before]) next = before;
    });
    current = next;
  }
  path.erase(path.begin(), path.begin() + position[current]);
  std::string text;
  constexpr std::size_t kMaxNamed = 6;
  for (std::size_t i = 0; i < std::min(path.size(), kMaxNamed); ++i) text += describe(graph.op(path[i])) + " <- ";
  if (path.size() > kMaxNamed) text += "... <- ";
  return text + describe(graph.op(current));
}

// Kahn's algorithm over events "op starts" and "group completes".
std::vector<OpIndex> start_order(const OpGraph& graph, std::vector<bool>& ended) {
  const std::size_t count = graph.size();
  std::vector<std::uint32_t> waiting(count);
  std::vector<std::uint32_t> dependent_begin(count + 1, 0);
  for (OpIndex op = 0; op < count; ++op) {
    waiting[op] = static_cast<std::uint32_t>(graph.dependencies(op).size());
    for (OpIndex before : graph.dependencies(op)) ++dependent_begin[before + 1];
  }
  for (std::size_t i = 0; i < count; ++i) dependent_begin[i + 1] += dependent_begin[i];
  std::vector<OpIndex> dependents(dependent_begin[count]);
  std::vector<std::uint32_t> fill(dependent_begin.begin(), dependent_begin.end() - 1);
  for (OpIndex op = 0; op < count; ++op) {
    for (OpIndex before : graph.dependencies(op)) dependents[fill[before]++] = op;
  }

  std::vector<std::uint32_t> started_members(graph.groups().size(), 0);
  std::vector<OpIndex> order;
  order.reserve(count);
  for (OpIndex op = 0; op < count; ++op) {
    if (waiting[op] == 0) order.push_back(op);
  }
  auto end_op = [&](OpIndex op) {
    ended[op] = true;
    for (std::uint32_t i = dependent_begin[op]; i < dependent_begin[op + 1]; ++i) {
      if (--waiting[dependents[i]] == 0) order.push_back(dependents[i]);
    }
  };
  for (std::size_t next = 0; next < order.size(); ++next) {
    const OpIndex op = order[next];
    if (!graph.is_communication(op)) {
      end_op(op);
      continue;
    }
    const GroupIndex group = graph.group_of(op);
    const std::vector<OpIndex>& members = graph.groups()[group].members;
    if (++started_members[group] == members.size()) std::for_each(members.begin(), members.end(), end_op);
  }
  return order;
}

}  // namespace

std::string describe(const Op& op) {
  return std::string(kind_name(op.kind)) + " " + std::to_string(op.seq_id) + " of stage " + std::to_string(op.stage);
}

OpIndex OpGraphBuilder::add_op(const Op& op) {
  ops_.push_back(op);
  dependencies_.emplace_back();
  return static_cast<OpIndex>(ops_.size() - 1);
}

void OpGraphBuilder::add_dependency(OpIndex op, OpIndex before) {
  std::vector<OpIndex>& known = dependencies_[op];
  if (std::find(known.begin(), known.end(), before) == known.end()) known.push_back(before);
}

void OpGraphBuilder::add_chain(std::span<const OpIndex> chain) {
  for (std::size_t i = 1; i < chain.size(); ++i) add_dependency(chain[i], chain[i - 1]);
}

void OpGraphBuilder::add_group(Group group) {
  if (!group.members.empty()) groups_.push_back(std::move(group));
}

Result<OpGraph> OpGraphBuilder::build() && {
  OpGraph graph;
  graph.ops_ = std::move(ops_);
  graph.groups_ = std::move(groups_);
  graph.step_ends_with_optimizer_ = step_ends_with_optimizer_;
  graph.dependency_begin_.push_back(0);
  for (const std::vector<OpIndex>& before : dependencies_) {
    graph.dependencies_.insert(graph.dependencies_.end(), before.begin(), before.end());
    graph.dependency_begin_.push_back(static_cast<std::uint32_t>(graph.dependencies_.size()));
  }
  graph.group_of_.assign(graph.ops_.size(), kNoGroup);
  for (GroupIndex group = 0; group < graph.groups_.size(); ++group) {
    for (OpIndex member : graph.groups_[group].members) {
      if (graph.group_of_[member] != kNoGroup) {
        return Error{describe(graph.ops_[member]) + " belongs to two communication groups"};
      }
      graph.group_of_[member] = group;
    }
  }
  std::vector<bool> ended(graph.ops_.size(), false);
  graph.order_ = start_order(graph, ended);
  if (std::find(ended.begin(), ended.end(), false) != ended.end()) {
    return Error{"the ops wait for each other in a circle: " + describe_cycle(graph, ended)};
  }
  return graph;
}

}  // namespace smon_rt::analysis
