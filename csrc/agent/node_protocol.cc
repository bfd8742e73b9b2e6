#include "agent/node_protocol.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace smon_rt {
namespace {

using agent_messages::SkipCause;

// Dead steps that are remembered: far more than ranks are ever apart.
constexpr std::size_t kMaxDeadSteps = 4096;
// Of those that a rank passed without a word: more than anyone has slots for.
constexpr std::uint64_t kMaxSilentSkips = 16;

}  // namespace

NodeProtocol::NodeProtocol(NodeProtocolOptions options) : options_(options), tried_(options.max_loads) {}

// ---- trainers and their slots

void NodeProtocol::attach(const RankSpec& spec) {
  Rank& rank = ranks_[spec.owner];
  if (rank.state != RankState::kGone) {
    rank.slots.abandon_if(is_under_way);
  }
  rank.spec = spec;
  rank.spec.every = std::max<std::uint64_t>(spec.every, 1);
  rank.state = RankState::kNew;
  rank.has_room = false;
  rank.is_done = false;
  world_size_ = std::max<std::size_t>(spec.world_size, 1);
  local_rank_count_ = std::clamp<std::size_t>(spec.local_rank_count, 1, world_size_);
}

void NodeProtocol::reconnected(std::string_view owner) {
  const Rank* const rank = find(owner);
  if (rank == nullptr) {
    return;
  }
  for (const OwnCopy& copy : rank->slots.copies()) {
    if (copy.stage == Stage::kWriting) {
      add_dead({copy.label, rank->spec.owner, SkipCause::kFailed});
    }
  }
}

void NodeProtocol::trainer_gone(std::string_view owner) {
  Rank* const rank = find(owner);
  if (rank == nullptr || rank->state == RankState::kGone) {
    return;
  }
  rank->state = RankState::kGone;
  rank->slots.drop_if(is_under_way);
  hear_interruption();
}

bool NodeProtocol::bye(std::string_view owner) {
  Rank* const rank = find(owner);
  if (rank == nullptr) {
    return false;
  }
  rank->is_done = true;
  return std::ranges::all_of(ranks_, [](const auto& entry) { return entry.second.is_done; }) &&
         ranks_.size() >= local_rank_count_;
}

Result<std::vector<std::uint32_t>> NodeProtocol::reserve(std::string_view owner, std::uint32_t layout_epoch,
                                                         std::uint64_t content_bytes) {
  Rank* const rank = find(owner);
  if (rank == nullptr) {
    return Error{"no hello came from " + std::string(owner) + ": nothing is reserved for it"};
  }
  rank->has_room = true;
  return rank->slots.reserve(layout_epoch, content_bytes, rank->spec.own_slots);
}

Result<void> NodeProtocol::adopt(std::string_view owner, std::uint32_t layout_epoch, std::uint64_t content_bytes,
                                 std::span<const AdoptedSlot> slots) {
  Rank* const rank = find(owner);
  if (rank == nullptr || rank->slots.slot_count() > 0 || rank->state != RankState::kNew) {
    return Error{"only a rank that has no slots here brings its own: " + std::string(owner)};
  }
  for (const AdoptedSlot& slot : slots) {
    if (!rank->slots.adopt(slot.slot, layout_epoch, content_bytes, slot.label)) {
      rank->slots = SlotTable();
      return Error{"slot " + std::to_string(slot.slot) + " of " + std::string(owner) + " came twice"};
    }
  }
  rank->state = RankState::kAdopted;
  rank->has_room = true;
  return {};
}

// ---- captures

bool NodeProtocol::began(std::string_view owner, Label label, std::uint32_t slot) {
  Rank* const rank = find(owner);
  if (rank == nullptr || rank->state != RankState::kRunning || label.incarnation != incarnation_) {
    return false;
  }
  const bool is_promised = rank->slots.move_on(label, slot, Stage::kPromised, Stage::kWriting);
  pass(*rank, label.step);
  if (!is_promised && !rank->slots.find(label)) {
    // What this rank writes, if anything, nobody will find.
    add_dead({label, rank->spec.owner, SkipCause::kNoPromise});
  }
  return is_promised;
}

bool NodeProtocol::copied(std::string_view owner, Label label, std::uint32_t slot) {
  Rank* const rank = find(owner);
  return rank != nullptr && rank->slots.move_on(label, slot, Stage::kWriting, Stage::kCopied);
}

bool NodeProtocol::hashed(std::string_view owner, Label label, std::uint32_t slot) {
  Rank* const rank = find(owner);
  return rank != nullptr && rank->slots.move_on(label, slot, Stage::kCopied, Stage::kCaptured);
}

void NodeProtocol::damaged(std::string_view owner, Label label, std::uint32_t slot, SkipCause cause) {
  Rank* const rank = find(owner);
  if (rank == nullptr) {
    return;
  }
  const std::optional<OwnCopy> copy = rank->slots.find(label);
  if (!copy || copy->slot != slot || copy->stage < Stage::kCopied) {
    return;
  }
  const bool was_agreed = label == last_agreed_;
  rank->slots.drop_if([&](const OwnCopy& other) { return other == *copy; });
  if (!was_agreed) {
    add_dead({label, rank->spec.owner, cause});
  }
}

bool NodeProtocol::skipped(std::string_view owner, Label label, SkipCause cause) {
  Rank* const rank = find(owner);
  if (rank == nullptr || rank->state != RankState::kRunning || label.incarnation != incarnation_) {
    return false;
  }
  const std::optional<OwnCopy> copy = rank->slots.find(label);
  if (copy && copy->stage >= Stage::kCopied) {
    return false;
  }
  rank->slots.drop_if([&](const OwnCopy& other) { return other.label == label; });
  pass(*rank, label.step);
  return add_dead({label, rank->spec.owner, cause});
}

// The rank will not capture this step any more, nor one before it.
void NodeProtocol::pass(Rank& rank, std::uint64_t step) {
  if (step < rank.next_step || step == std::numeric_limits<std::uint64_t>::max()) {
    return;
  }
  const std::uint64_t every = rank.spec.every;
  std::uint64_t silent = step - step % every;
  for (std::uint64_t count = 0; count < kMaxSilentSkips && silent >= rank.next_step; ++count, silent -= every) {
    // Others may have what this rank passed without a word: nobody is to wait for it.
    const Label label{incarnation_, silent};
    const std::optional<OwnCopy> copy = rank.slots.find(label);
    if (silent < step && (!copy || copy->stage < Stage::kWriting)) {
      add_dead({label, rank.spec.owner, SkipCause::kNoPromise});
    }
    if (silent < every) {
      break;
    }
  }
  rank.next_step = step + 1;
  rank.slots.drop_if([&](const OwnCopy& copy) {
    return copy.stage == Stage::kPromised && copy.label.incarnation == incarnation_ && copy.label.step <= step;
  });
}

bool NodeProtocol::add_dead(const StepDead& dead) {
  if (dead.label.incarnation != incarnation_ || !dead_.insert(dead.label.step).second) {
    return false;
  }
  if (dead_.size() > kMaxDeadSteps) {
    dead_.erase(dead_.begin());
  }
  ++dead_step_count_;
  last_dead_ = dead;
  effects_.emplace_back(dead);
  return true;
}

bool NodeProtocol::is_dead(Label label) const {
  return label.incarnation == incarnation_ && dead_.contains(label.step);
}

// ---- what follows from all that

std::vector<Effect> NodeProtocol::advance() {
  drop_all_dead();
  if (!is_fenced_) {
    // Between pin and go_on as well: the choice may yet turn out to be unreadable, and an older step be pinned.
    note_agreed();
    free_older();
    forget_past_dead();
  }
  for (auto& [owner, rank] : ranks_) {
    collect_ended(owner, rank.slots);
    if (std::optional<PromiseMade> made = promise(owner)) {
      effects_.emplace_back(*std::move(made));
    }
  }
  return std::exchange(effects_, {});
}

std::optional<PromiseMade> NodeProtocol::promise(std::string_view owner) {
  Rank* const rank = find(owner);
  if (rank == nullptr || rank->state != RankState::kRunning || !rank->has_room) {
    return std::nullopt;
  }
  const std::uint64_t every = rank->spec.every;
  if (rank->next_step > std::numeric_limits<std::uint64_t>::max() - every * (kMaxDeadSteps + 2)) {
    return std::nullopt;
  }
  Label label{incarnation_, (rank->next_step + every - 1) / every * every};
  while (is_dead(label)) {
    label.step += every;
  }
  const auto is_promise = [](const OwnCopy& copy) { return copy.stage == Stage::kPromised; };
  if (std::ranges::any_of(rank->slots.copies(), is_promise)) {
    return std::nullopt;
  }
  const std::optional<std::uint32_t> slot = rank->slots.promise(label);
  if (!slot) {
    return std::nullopt;
  }
  return PromiseMade{rank->spec.owner, label, *slot, rank->slots.layout_epoch()};
}

void NodeProtocol::free_older() {
  const std::optional<Label> agreed = this->agreed();
  if (!agreed || (is_fenced_ && !is_choice_known_)) {
    return;
  }
  if (agreed->incarnation == incarnation_) {
    // Every rank has captured it, so every one has gone on.
    release_pin();
  }
  const auto is_older = [&](Label label) { return label < *agreed && label != pinned_; };
  for (auto& [owner, rank] : ranks_) {
    rank.slots.drop_if([&](const OwnCopy& copy) { return is_older(copy.label); });
  }
  for (auto& [owner, labels] : replicas_) {
    std::erase_if(labels, is_older);
  }
}

void NodeProtocol::drop_dead(Label label) {
  if (!is_dead(label)) {
    return;
  }
  for (auto& [owner, rank] : ranks_) {
    rank.slots.drop_if([&](const OwnCopy& copy) { return copy.label == label; });
  }
  for (auto& [owner, labels] : replicas_) {
    labels.erase(label);
  }
}

void NodeProtocol::drop_all_dead() {
  for (auto& [owner, rank] : ranks_) {
    rank.slots.drop_if([this](const OwnCopy& copy) { return is_dead(copy.label); });
  }
  for (auto& [owner, labels] : replicas_) {
    std::erase_if(labels, [this](Label label) { return is_dead(label); });
  }
}

// A rank that is behind must still hear of it, so must one of another node: these are bounded by kMaxDeadSteps alone.
void NodeProtocol::forget_past_dead() {
  if (!is_whole_job_here() || ranks_.size() < world_size_) {
    return;
  }
  std::uint64_t passed_by_all = std::numeric_limits<std::uint64_t>::max();
  for (const auto& [owner, rank] : ranks_) {
    passed_by_all = std::min(passed_by_all, rank.next_step);
  }
  dead_.erase(dead_.begin(), dead_.lower_bound(passed_by_all));
}

void NodeProtocol::note_agreed() {
  const std::optional<Label> agreed = this->agreed();
  if (!agreed) {
    return;
  }
  if (!last_agreed_ || *agreed > *last_agreed_) {
    last_agreed_ = agreed;
    tried_.forget_loads_before(*agreed);
    effects_.emplace_back(StepAgreed{*agreed});
  }
}

void NodeProtocol::collect_ended(const std::string& owner, SlotTable& slots) {
  for (const std::uint32_t slot : slots.take_ended()) {
    effects_.emplace_back(SlotEnded{owner, slot});
  }
}

// ---- asked

std::optional<Label> NodeProtocol::agreed() const {
  const Holdings here = holdings();
  std::vector<const Holdings*> nodes{&here};
  for (const auto& [node, heard] : heard_) {
    nodes.push_back(&heard);
  }
  return newest_agreed(nodes, {world_size_, options_.replica_slots > 0,
                               [this](Label label) { return is_kept(label) && !tried_.contains(label); }});
}

std::vector<std::string> NodeProtocol::owners() const {
  std::vector<std::string> owners;
  for (const auto& [owner, rank] : ranks_) {
    owners.push_back(owner);
  }
  return owners;
}

std::vector<OwnCopy> NodeProtocol::own_copies(std::string_view owner) const {
  const Rank* const rank = find(owner);
  return rank == nullptr ? std::vector<OwnCopy>() : rank->slots.copies();
}

std::set<Label> NodeProtocol::replicas(std::string_view owner) const {
  const auto found = replicas_.find(owner);
  return found == replicas_.end() ? std::set<Label>() : found->second;
}

NodeProtocol::Rank* NodeProtocol::find(std::string_view owner) {
  const auto found = ranks_.find(owner);
  return found == ranks_.end() ? nullptr : &found->second;
}

const NodeProtocol::Rank* NodeProtocol::find(std::string_view owner) const {
  const auto found = ranks_.find(owner);
  return found == ranks_.end() ? nullptr : &found->second;
}

}  // namespace smon_rt
