#include "analysis/id_groups.h"

#include <algorithm>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>

namespace smon_rt::analysis {
namespace {

struct Member {
  std::int64_t group_id = 0;
  std::uint32_t step = 0;
  OpIndex op = 0;
  std::uint32_t dp_rank = 0;
};

// One use of a group id in one step: a range of the members, sorted by op and dp rank.
struct Use {
  std::uint32_t begin = 0;
  std::uint32_t end = 0;
};

class GroupFinder {
 public:
  GroupFinder(const OpColumns& columns, const LaunchOrder& order, IdCells& cells)
      : c_(columns), order_(order), cells_(cells), relation_of_(cells.ops.size(), kNoGroup) {}

  std::vector<Group> run() {
    collect();
    std::map<std::vector<OpIndex>, std::vector<Use>> uses;
    for_each_use([&](const Use& use) { uses[ops_of(use)].push_back(use); });
    std::vector<const std::pair<const std::vector<OpIndex>, std::vector<Use>>*> by_frequency;
    for (const auto& each : uses) by_frequency.push_back(&each);
    // The relation most lanes have comes first; of two as frequent the one recorded first.
    std::sort(by_frequency.begin(), by_frequency.end(), [](const auto* a, const auto* b) {
      if (a->second.size() != b->second.size()) return a->second.size() > b->second.size();
      return a->second.front().begin < b->second.front().begin;
    });
    for (const auto* each : by_frequency) take(each->first, each->second);
    return relations_to_groups();
  }

 private:
  void collect() {
    if (c_.group_id.empty()) return;
    for (std::size_t worker = 0; worker < order_.worker_count(); ++worker) {
      const std::size_t lane = worker / cells_.pp_size;
      if (cells_.is_left_out(lane)) continue;
      for (std::size_t i = order_.begin(worker); i < order_.begin(worker + 1); ++i) {
        const std::int64_t group_id = c_.group_id[order_.launches()[i].row];
        if (group_id < 0) continue;
        members_.push_back({group_id, static_cast<std::uint32_t>(lane / cells_.dp_size), cells_.op_of[i],
                            static_cast<std::uint32_t>(lane % cells_.dp_size)});
      }
    }
    std::sort(members_.begin(), members_.end(), [](const Member& a, const Member& b) {
      return std::tie(a.step, a.group_id, a.op, a.dp_rank) < std::tie(b.step, b.group_id, b.op, b.dp_rank);
    });
  }

  // Ids that only one op has say nothing.
  template <typename Visit>
  void for_each_use(Visit visit) const {
    for (std::size_t begin = 0; begin < members_.size();) {
      std::size_t end = begin + 1;
      while (end < members_.size() && members_[end].step == members_[begin].step &&
             members_[end].group_id == members_[begin].group_id) {
        ++end;
      }
      if (end - begin > 1) visit(Use{static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
      begin = end;
    }
  }

  std::span<const Member> members_of(const Use& use) const {
    return {members_.data() + use.begin, members_.data() + use.end};
  }
  std::size_t step_of(const Use& use) const { return members_[use.begin].step; }

  std::vector<OpIndex> ops_of(const Use& use) const {
    std::vector<OpIndex> ops;
    for (const Member& member : members_of(use)) {
      if (ops.empty() || ops.back() != member.op) ops.push_back(member.op);
    }
    return ops;
  }

  std::vector<std::size_t> dp_ranks_of(const Use& use) const {
    std::vector<std::size_t> dp_ranks;
    for (const Member& member : members_of(use)) dp_ranks.push_back(member.dp_rank);
    std::sort(dp_ranks.begin(), dp_ranks.end());
    dp_ranks.erase(std::unique(dp_ranks.begin(), dp_ranks.end()), dp_ranks.end());
    return dp_ranks;
  }

  // Accepts a set of ops as (part of) one relation, or leaves out the steps that have it.
  void take(const std::vector<OpIndex>& ops, const std::vector<Use>& uses) {
    GroupIndex relation = kNoGroup;
    OpIndex other = ops.front();
    for (OpIndex op : ops) {
      if (relation_of_[op] == kNoGroup) continue;
      if (relation != kNoGroup && relation_of_[op] != relation) return reject(ops, other, op, uses);
      relation = relation_of_[op];
      other = op;
    }
    if (relation == kNoGroup) {
      relation = static_cast<GroupIndex>(relations_.size());
      relations_.emplace_back();
    } else if (is_p2p(ops) && !std::includes(relations_[relation].ops.begin(), relations_[relation].ops.end(),
                                             ops.begin(), ops.end())) {
      return reject(ops, other, other, uses);  // a transfer has one sender and one receiver
    } else if (const OpIndex left_behind = who_is_not_asked(relation, ops, uses); left_behind != IdCells::kNone) {
      return reject(ops, other, left_behind, uses);
    }
    for (OpIndex op : ops) {
      if (relation_of_[op] != relation) relations_[relation].ops.push_back(op);
      relation_of_[op] = relation;
    }
    for (const Use& use : uses) relations_[relation].uses.push_back(use);
  }

  bool is_p2p(const std::vector<OpIndex>& ops) const { return role_of(cells_.ops[ops.front()].kind) == Role::kP2p; }

  // A member of the relation that was there and yet had no part in one of the uses.
  OpIndex who_is_not_asked(GroupIndex relation, const std::vector<OpIndex>& ops, const std::vector<Use>& uses) {
    for (OpIndex member : relations_[relation].ops) {
      if (std::find(ops.begin(), ops.end(), member) != ops.end()) continue;
      for (const Use& use : uses) {
        for (std::size_t dp_rank : dp_ranks_of(use)) {
          const std::size_t lane = step_of(use) * cells_.dp_size + dp_rank;
          if (cells_.has(member, lane) && group_id_of(member, lane) >= 0) return member;
        }
      }
    }
    return IdCells::kNone;
  }

  std::int64_t group_id_of(OpIndex op, std::size_t lane) const {
    return c_.group_id[order_.launches()[cells_.launch[op * cells_.lane_count + lane]].row];
  }

  void reject(const std::vector<OpIndex>& ops, OpIndex one, OpIndex other, const std::vector<Use>& uses) {
    const OpIndex partner = ops.front() == one ? ops.back() : ops.front();
    for (const Use& use : uses) {
      cells_.leave_out(step_of(use), describe_by_ids(cells_.ops[one]) + " communicates with " +
                                         describe_by_ids(cells_.ops[partner]) + ", in most steps " +
                                         describe_by_ids(cells_.ops[other]) + " does otherwise");
    }
  }

  struct Relation {
    std::vector<OpIndex> ops;
    std::vector<Use> uses;
  };

  enum class Reach { kWithinLane, kAllDpRanks, kSomeDpRanks };

  // Over how many dp ranks one use went.
  Reach reach_of(const Relation& relation, const Use& use, std::span<const std::size_t> dp_ranks) const {
    if (dp_ranks.size() == 1) return Reach::kWithinLane;
    for (std::size_t dp_rank = 0; dp_rank < cells_.dp_size; ++dp_rank) {
      if (std::binary_search(dp_ranks.begin(), dp_ranks.end(), dp_rank)) continue;
      const std::size_t lane = step_of(use) * cells_.dp_size + dp_rank;
      for (OpIndex op : relation.ops) {
        if (cells_.has(op, lane) && group_id_of(op, lane) >= 0) return Reach::kSomeDpRanks;
      }
    }
    return Reach::kAllDpRanks;
  }

  // A use within one dp rank says something only where others had the ops too.
  bool says_something(const Relation& relation, const Use& use, Reach reach, std::size_t own_dp_rank) const {
    if (reach != Reach::kWithinLane) return true;
    for (std::size_t dp_rank = 0; dp_rank < cells_.dp_size; ++dp_rank) {
      if (dp_rank == own_dp_rank) continue;
      for (OpIndex op : relation.ops) {
        if (cells_.has(op, step_of(use) * cells_.dp_size + dp_rank)) return true;
      }
    }
    return false;
  }

  std::vector<Group> relations_to_groups() {
    std::vector<Group> result;
    for (const Relation& relation : relations_) {
      std::size_t count[3] = {0, 0, 0};
      std::vector<Reach> reaches;
      for (const Use& use : relation.uses) {
        const std::vector<std::size_t> dp_ranks = dp_ranks_of(use);
        reaches.push_back(reach_of(relation, use, dp_ranks));
        if (says_something(relation, use, reaches.back(), dp_ranks.front())) {
          ++count[static_cast<std::size_t>(reaches.back())];
        }
      }
      const auto most = static_cast<Reach>(std::max_element(count, count + 3) - count);
      if (most == Reach::kSomeDpRanks) {
        result.push_back(partial_group(relation));
        continue;
      }
      for (std::size_t i = 0; i < reaches.size(); ++i) {
        const Use& use = relation.uses[i];
        const std::size_t dp_rank = members_[use.begin].dp_rank;
        const bool differs = reaches[i] != most && says_something(relation, use, reaches[i], dp_rank);
        const auto is_asked = [&](std::size_t other) { return most == Reach::kAllDpRanks || other == dp_rank; };
        if (!differs && !is_cut(relation, use, is_asked)) continue;
        leave_out_for_reach(relation, use);
      }
      result.push_back({relation.ops, most == Reach::kAllDpRanks});
    }
    return result;
  }

  // A group of parts of the dp ranks. The sets of ranks that most uses have come first; one that lacks a member, or has
  // one more, goes with them, one that joins two of them is left out.
  Group partial_group(const Relation& relation) {
    std::map<std::vector<std::size_t>, std::vector<const Use*>> uses_of;
    for (const Use& use : relation.uses) uses_of[dp_ranks_of(use)].push_back(&use);
    std::vector<const std::pair<const std::vector<std::size_t>, std::vector<const Use*>>*> by_frequency;
    for (const auto& each : uses_of) by_frequency.push_back(&each);
    std::stable_sort(by_frequency.begin(), by_frequency.end(),
                     [](const auto* a, const auto* b) { return a->second.size() > b->second.size(); });
    constexpr std::uint32_t kNoPart = IdCells::kNone;
    Group group{relation.ops, true, std::vector<std::uint32_t>(cells_.dp_size, kNoPart)};
    std::uint32_t part_count = 0;
    for (const auto* each : by_frequency) {
      std::uint32_t part = kNoPart;
      bool joins_parts = false;
      for (std::size_t dp_rank : each->first) {
        const std::uint32_t own = group.dp_part[dp_rank];
        joins_parts = joins_parts || (part != kNoPart && own != kNoPart && own != part);
        if (own != kNoPart) part = own;
      }
      if (joins_parts) {
        for (const Use* use : each->second) leave_out_for_reach(relation, *use);
        continue;
      }
      if (part == kNoPart) part = part_count++;
      for (std::size_t dp_rank : each->first) group.dp_part[dp_rank] = part;
    }
    for (std::uint32_t& part : group.dp_part) {
      if (part == kNoPart) part = part_count++;
    }
    for (const Use& use : relation.uses) {
      const std::size_t own = members_[use.begin].dp_rank;
      if (is_cut(relation, use, [&](std::size_t dp_rank) { return group.joins(own, dp_rank); })) {
        leave_out_for_reach(relation, use);
      }
    }
    return group;
  }

  void leave_out_for_reach(const Relation& relation, const Use& use) {
    cells_.leave_out(step_of(use), describe_by_ids(cells_.ops[relation.ops.front()]) +
                                       " communicates over other dp ranks or stages than in most steps");
  }

  // Another use of the same relation in lanes that are asked: what is one group elsewhere is two here.
  template <typename IsAsked>
  bool is_cut(const Relation& relation, const Use& use, IsAsked is_asked) const {
    const Member& first = members_[use.begin];
    for (OpIndex op : relation.ops) {
      for (std::size_t dp_rank = 0; dp_rank < cells_.dp_size; ++dp_rank) {
        const std::size_t lane = first.step * cells_.dp_size + dp_rank;
        if (!is_asked(dp_rank) || !cells_.has(op, lane)) continue;
        const std::int64_t group_id = group_id_of(op, lane);
        if (group_id >= 0 && group_id != first.group_id) return true;
      }
    }
    return false;
  }

  const OpColumns& c_;
  const LaunchOrder& order_;
  IdCells& cells_;
  std::vector<Member> members_;
  std::vector<GroupIndex> relation_of_;
  std::vector<Relation> relations_;
};

}  // namespace

std::vector<Group> find_groups(const OpColumns& columns, const LaunchOrder& order, IdCells& cells) {
  return GroupFinder(columns, order, cells).run();
}

}  // namespace smon_rt::analysis
