// How a NodeProtocol goes through a restart: fence, list, pin, fetch, go on; and what it shares with other nodes.
#include <algorithm>
#include <utility>

#include "agent/node_protocol.h"

namespace smon_rt {
Result<void> NodeProtocol::fence(std::string_view owner, std::uint32_t incarnation) {
  Rank* const rank = find(owner);
  if (rank == nullptr) {
    return Error{"no hello came from " + std::string(owner)};
  }
  if (incarnation < incarnation_ || (incarnation == incarnation_ && has_gone_on_)) {
    return Error{"incarnation " + std::to_string(incarnation) + " is over: the agent has heard of " +
                 std::to_string(incarnation_) + "; start the trainer anew"};
  }
  if (incarnation > incarnation_ || !is_fenced_) {
    begin_recovery(incarnation, *rank);
  }
  rank->state = RankState::kFenced;
  return {};
}

// Captures that are not complete are given up, and with them the slots of trainers that may not have heard that they
// are replaced.
void NodeProtocol::begin_recovery(std::uint32_t incarnation, const Rank& by) {
  incarnation_ = incarnation;
  is_fenced_ = true;
  has_gone_on_ = false;
  dead_.clear();
  hear_interruption();
  std::erase_if(heard_, [this](const auto& entry) { return entry.second.incarnation < incarnation_; });
  for (auto& [owner, rank] : ranks_) {
    if (&rank == &by) {
      rank.slots.drop_if(is_under_way);
    } else {
      rank.slots.abandon_if(is_under_way);
    }
    rank.state = rank.state == RankState::kGone ? RankState::kGone : RankState::kNew;
  }
  for (TriedMarks::Mark& worn : tried_.mark_worn()) {
    effects_.emplace_back(StateTried{worn.label, std::move(worn.reason)});
  }
}

bool NodeProtocol::is_all_fenced() const {
  const auto is_fenced = [](const auto& entry) { return entry.second.state == RankState::kFenced; };
  return is_fenced_ && static_cast<std::size_t>(std::ranges::count_if(ranks_, is_fenced)) >= local_rank_count_;
}

Result<void> NodeProtocol::pin(std::string_view owner, Label label, std::span<const Label> kept) {
  const Rank* const rank = find(owner);
  if (rank == nullptr || rank->state != RankState::kFenced || !is_all_fenced()) {
    return Error{"not all ranks of this node are fenced in incarnation " + std::to_string(incarnation_) + ": " +
                 to_text(label) + " is not pinned"};
  }
  pinned_ = label;
  kept_.clear();
  std::ranges::copy_if(kept, std::inserter(kept_, kept_.end()), [&](Label other) { return other < label; });
  is_choice_known_ = true;
  return {};
}

Result<std::optional<std::uint32_t>> NodeProtocol::fetch(std::string_view owner, Label label) const {
  const Rank* const rank = find(owner);
  if (rank == nullptr || rank->state != RankState::kFenced || !is_choice_known_ || pinned_ != label) {
    return Error{to_text(label) + " is not pinned, and may be gone at any moment"};
  }
  const std::optional<OwnCopy> copy = rank->slots.find(label);
  return copy && copy->stage == Stage::kCaptured ? std::optional(copy->slot) : std::nullopt;
}

Result<void> NodeProtocol::go_on(std::string_view owner, std::uint32_t incarnation, std::uint64_t next_step) {
  Rank* const rank = find(owner);
  if (rank == nullptr) {
    return Error{"no hello came from " + std::string(owner)};
  }
  if (rank->state == RankState::kNew || rank->state == RankState::kAdopted) {
    return rejoin(*rank, incarnation, next_step);
  }
  if (incarnation != incarnation_ || rank->state != RankState::kFenced || !is_choice_known_) {
    return Error{std::string(owner) + " has not pinned what it goes on from in incarnation " +
                 std::to_string(incarnation_) + ", or another rank has died since"};
  }
  if (is_fenced_) {
    end_recovery();
  }
  // Its address may have changed: ranks that are not of this job any more are forgotten.
  Rank& running = ranks_.find(owner)->second;
  running.state = RankState::kRunning;
  running.next_step = next_step;
  const auto is_running = [](const auto& entry) { return entry.second.state == RankState::kRunning; };
  if (is_whole_job_here() && ranks_.size() >= world_size_ && std::ranges::all_of(ranks_, is_running)) {
    release_pin();
  }
  return {};
}

// The connection, or the agent, was another one before; training went on meanwhile.
Result<void> NodeProtocol::rejoin(Rank& rank, std::uint32_t incarnation, std::uint64_t next_step) {
  const bool is_ours = incarnation == incarnation_ && has_gone_on_;
  const bool is_newer = rank.state == RankState::kAdopted && incarnation > incarnation_;
  if (is_fenced_ || !(is_ours || is_newer || (rank.state == RankState::kAdopted && incarnation == incarnation_))) {
    return Error{rank.spec.owner + " goes on in incarnation " + std::to_string(incarnation) +
                 ", the agent has heard of " + std::to_string(incarnation_)};
  }
  if (is_newer) {
    dead_.clear();
  }
  incarnation_ = incarnation;
  has_gone_on_ = true;
  rank.state = RankState::kRunning;
  if (next_step > 0) {
    // Of what it ended meanwhile it has what is complete, and no more.
    pass(rank, next_step - 1);
    const Label last{incarnation_, next_step - 1};
    if (last.step % rank.spec.every == 0 && !rank.slots.find(last)) {
      add_dead({last, rank.spec.owner, agent_messages::SkipCause::kNoPromise});
    }
  }
  return {};
}

// Every rank of the job has restored the choice. What nobody can go back to is forgotten.
void NodeProtocol::end_recovery() {
  is_fenced_ = false;
  has_gone_on_ = true;
  tried_.count_load(*pinned_);
  for (auto entry = ranks_.begin(); entry != ranks_.end();) {
    Rank& rank = entry->second;
    const bool is_of_job = rank.state == RankState::kFenced;
    rank.slots.drop_if(
        [&](const OwnCopy& copy) { return !is_of_job || copy.stage < Stage::kCopied || !is_kept(copy.label); });
    if (!is_of_job) {
      rank.slots.reserve(0, 0, 0);
    }
    collect_ended(entry->first, rank.slots);
    entry = is_of_job ? std::next(entry) : ranks_.erase(entry);
  }
  for (auto& [owner, labels] : replicas_) {
    std::erase_if(labels, [this](Label label) { return !is_kept(label); });
  }
}

// From the choice until all go on only what will be kept counts. Nothing is captured before all have gone on: what is
// of this incarnation needs no asking.
bool NodeProtocol::is_kept(Label label) const {
  return !is_choice_known_ || label.incarnation == incarnation_ || label == pinned_ || kept_.contains(label);
}

void NodeProtocol::release_pin() {
  is_choice_known_ = false;
  pinned_.reset();
  kept_.clear();
}

bool NodeProtocol::reject(Label label, std::string_view reason) {
  if (!tried_.mark(label, std::string(reason))) {
    return false;
  }
  effects_.emplace_back(StateTried{label, std::string(reason)});
  return true;
}

// ---- with the agents of other nodes

Holdings NodeProtocol::holdings() const {
  Holdings holdings{incarnation_, {}, {}};
  for (const auto& [owner, rank] : ranks_) {
    holdings.own[owner] = rank.slots.captured();
  }
  for (const auto& [owner, labels] : replicas_) {
    holdings.replicas[owner] = labels;
  }
  return holdings;
}

void NodeProtocol::hear(std::string_view node, Holdings holdings) {
  if (holdings.incarnation >= incarnation_) {
    heard_.insert_or_assign(std::string(node), std::move(holdings));
  }
}

void NodeProtocol::forget_node(std::string_view node) {
  const auto found = heard_.find(node);
  if (found != heard_.end()) {
    heard_.erase(found);
  }
}

bool NodeProtocol::hear_dead(const StepDead& dead) {
  return add_dead(dead);
}

void NodeProtocol::hear_interruption() {
  is_choice_known_ = false;
  kept_.clear();
}

bool NodeProtocol::may_send(std::string_view owner, Label label) const {
  const Rank* const rank = find(owner);
  return rank != nullptr && rank->slots.captured().contains(label) && is_kept(label);
}

bool NodeProtocol::receive_replica(std::string_view owner, Label label, std::uint32_t sender_incarnation) {
  if (sender_incarnation < incarnation_) {
    return false;
  }
  // It may have been sent before its sender was pinned: after going on it would fill the slot for good.
  if (!is_fenced_ && !is_kept(label)) {
    return false;
  }
  const auto found = replicas_.find(owner);
  const std::size_t held = found == replicas_.end() ? 0 : found->second.size();
  if (held > 0 && found->second.contains(label)) {
    return true;
  }
  if (held >= options_.replica_slots) {
    return false;
  }
  return replicas_[std::string(owner)].insert(label).second;
}

std::optional<std::uint32_t> NodeProtocol::add_fetched(std::string_view owner, Label label) {
  Rank* const rank = find(owner);
  const bool is_asked = rank != nullptr && rank->state == RankState::kFenced && is_choice_known_ && pinned_ == label;
  return is_asked ? rank->slots.add_captured(label) : std::nullopt;
}

}  // namespace smon_rt
