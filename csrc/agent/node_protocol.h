#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/holdings.h"
#include "agent/slot_table.h"
#include "agent/tried_marks.h"
#include "base/result.h"
#include "checkpoint/agent_messages.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

struct NodeProtocolOptions {
  /// Replicas that this node keeps of each rank whose holder it is. 0: no holders, agreed means captured by all.
  std::size_t replica_slots = 0;
  /// A state that was gone on from so often without a newer one becoming agreed counts as tried: else a job would start
  /// again and again from a state that it cannot go on from. Many, since it may be the only one, and a good one: a job
  /// that is killed for other reasons each time before its first capture must not lose it. reject() is the quick way.
  std::uint32_t max_loads = 100;
};

/// What a trainer says of itself when it comes.
struct RankSpec {
  std::string owner;
  std::size_t world_size = 1;
  std::size_t local_rank_count = 1;  // of them on this node
  std::uint64_t every = 1;
  std::size_t own_slots = 2;
};

/// A slot that a trainer brings to an agent that was started anew.
struct AdoptedSlot {
  std::uint32_t slot = 0;
  std::optional<Label> label;  // of the copy in it, if that is complete and its hashes agree
};

// What the agent has to do; in this order.
struct PromiseMade {
  std::string owner;
  Label label;
  std::uint32_t slot = 0;
  std::uint32_t layout_epoch = 0;
};
struct StepDead {  // to all trainers of the node
  Label label;
  std::string owner;  // who skipped it
  agent_messages::SkipCause cause{};
};
struct SlotEnded {  // its memory is given back
  std::string owner;
  std::uint32_t slot = 0;
};
struct StepAgreed {  // every rank has it; its slots stay as they are until a newer one is agreed
  Label label;
};
struct StateTried {  // to be remembered beyond the agent's life
  Label label;
  std::string reason;
};
using Effect = std::variant<PromiseMade, StepDead, SlotEnded, StepAgreed, StateTried>;

/// What one agent decides: the checkpoint protocol of one node, as tests/model has it, with the rules of
/// docs/checkpoint.md. No input or output, no clock, no memory: the agent tells it what happened, calls advance(), and
/// does what that returns. Input of any kind is borne: what does not fit is refused and changes nothing.
///
/// Life of a step: promise -> began -> copied -> hashed (captured) -> agreed, or skipped, by one rank for all.
/// Life of a restart: attach, fence by each rank; when is_all_fenced() and hashed, list; pin; fetch; go_on.
///
/// Threading: one thread at a time.
class NodeProtocol {
 public:
  explicit NodeProtocol(NodeProtocolOptions options);

  // ---- trainers and their slots

  /// A trainer is here. Whatever an earlier one of this owner had under way is given up, the slots with it unless
  /// trainer_gone() was said of it.
  void attach(const RankSpec& spec);
  /// The same trainer, anew: what it had under way it has given up, and what it said of that may be lost.
  void reconnected(std::string_view owner);
  /// Its process is known to be dead: what it had not copied is given up.
  void trainer_gone(std::string_view owner);
  /// Nothing of it is needed any more. True: that was the last one.
  bool bye(std::string_view owner);
  /// The numbers of own_slots slots: those that are there already where the size is the same. New numbers need memory.
  Result<std::vector<std::uint32_t>> reserve(std::string_view owner, std::uint32_t layout_epoch,
                                             std::uint64_t content_bytes);
  /// For a rank of which nothing is known yet. It is running, and go_on() follows without a recovery.
  Result<void> adopt(std::string_view owner, std::uint32_t layout_epoch, std::uint64_t content_bytes,
                     std::span<const AdoptedSlot> slots);

  // ---- captures. False: not so, or no longer; it changes nothing

  bool began(std::string_view owner, Label label, std::uint32_t slot);
  /// True: it is to be hashed.
  bool copied(std::string_view owner, Label label, std::uint32_t slot);
  /// True: it is captured.
  bool hashed(std::string_view owner, Label label, std::uint32_t slot);
  /// The copy is not what was captured, or not complete: it is forgotten, and its step is dead if it is of this
  /// incarnation and not agreed.
  void damaged(std::string_view owner, Label label, std::uint32_t slot, agent_messages::SkipCause cause);
  /// The rank ended this step without a capture, or gave that up. True: the step is dead from here on, and was not.
  bool skipped(std::string_view owner, Label label, agent_messages::SkipCause cause);

  // ---- restart

  Result<void> fence(std::string_view owner, std::uint32_t incarnation);
  /// All ranks of the node are: copies may be listed.
  bool is_all_fenced() const;
  /// From the first fence to the first go_on.
  bool is_fenced() const noexcept { return is_fenced_; }
  Result<void> pin(std::string_view owner, Label label, std::span<const Label> kept);
  /// The slot that a rank in recovery restores from; none where the node has no captured copy (a holder, or disk, may).
  Result<std::optional<std::uint32_t>> fetch(std::string_view owner, Label label) const;
  Result<void> go_on(std::string_view owner, std::uint32_t incarnation, std::uint64_t next_step);
  /// True: it was not marked before.
  bool reject(Label label, std::string_view reason);
  /// From an earlier life of the agent.
  void restore_mark(Label label, std::string_view reason) { tried_.mark(label, std::string(reason)); }

  // ---- what follows from all that

  /// Frees, forgets and promises what can be by now. Call it after each input, or batch of them.
  std::vector<Effect> advance();

  // ---- asked

  std::uint32_t incarnation() const noexcept { return incarnation_; }
  /// The newest step that every rank has, by what is held and has been heard of now.
  std::optional<Label> agreed() const;
  std::optional<Label> pinned() const noexcept { return pinned_; }
  const TriedMarks& tried() const noexcept { return tried_; }
  bool knows(std::string_view owner) const { return ranks_.contains(owner); }
  std::vector<std::string> owners() const;
  /// Own copies by label; none of an owner that is not known.
  std::vector<OwnCopy> own_copies(std::string_view owner) const;
  std::set<Label> replicas(std::string_view owner) const;
  /// Steps that ranks have skipped, of which this node has heard.
  std::uint64_t dead_step_count() const noexcept { return dead_step_count_; }
  std::optional<StepDead> last_dead() const { return last_dead_; }

  // ---- with the agents of other nodes

  Holdings holdings() const;
  /// What another node had when it said so: older than this node's incarnation, it is ignored.
  void hear(std::string_view node, Holdings holdings);
  void forget_node(std::string_view node);
  /// False: known, or not of this incarnation.
  bool hear_dead(const StepDead& dead);
  /// The recovery under way has failed elsewhere: until the next one is pinned nothing is freed.
  void hear_interruption();
  /// Captured, and kept by the recovery under way.
  bool may_send(std::string_view owner, Label label) const;
  /// False: refused, or no slot; true also where it is there already. Of a dead step it goes with the next advance().
  bool receive_replica(std::string_view owner, Label label, std::uint32_t sender_incarnation);
  /// A rank in recovery got the pinned state from its holder: it is an own copy again. None: no slot for it.
  std::optional<std::uint32_t> add_fetched(std::string_view owner, Label label);

  // ---- the steps of advance(), one by one

  std::optional<PromiseMade> promise(std::string_view owner);
  /// Own copies and replicas older than the newest agreed step.
  void free_older();
  /// What is held of a dead step.
  void drop_dead(Label label);

 private:
  enum class RankState : std::uint8_t { kNew, kAdopted, kFenced, kRunning, kGone };

  struct Rank {
    RankSpec spec;
    RankState state = RankState::kNew;
    bool is_done = false;         // said bye
    bool has_room = false;        // reserved by this trainer, not only by one before it
    std::uint64_t next_step = 0;  // the first that it has not reported
    SlotTable slots;
  };
  using Ranks = std::map<std::string, Rank, std::less<>>;

  Rank* find(std::string_view owner);
  const Rank* find(std::string_view owner) const;
  bool is_whole_job_here() const { return local_rank_count_ >= world_size_; }
  bool is_kept(Label label) const;
  bool is_dead(Label label) const;
  bool add_dead(const StepDead& dead);
  void pass(Rank& rank, std::uint64_t step);
  void begin_recovery(std::uint32_t incarnation, const Rank& by);
  void end_recovery();
  void release_pin();
  Result<void> rejoin(Rank& rank, std::uint32_t incarnation, std::uint64_t next_step);
  void drop_all_dead();
  void forget_past_dead();
  void note_agreed();
  void collect_ended(const std::string& owner, SlotTable& slots);

  NodeProtocolOptions options_;
  Ranks ranks_;
  std::map<std::string, std::set<Label>, std::less<>> replicas_;
  std::map<std::string, Holdings, std::less<>> heard_;
  TriedMarks tried_;

  std::uint32_t incarnation_ = 0;
  std::size_t world_size_ = 1;
  std::size_t local_rank_count_ = 1;
  bool is_fenced_ = false;
  bool has_gone_on_ = false;      // some rank, in this incarnation
  bool is_choice_known_ = false;  // pinned in this incarnation, and its recovery has not failed
  std::optional<Label> pinned_;
  std::set<Label> kept_;          // beside what is pinned
  std::set<std::uint64_t> dead_;  // steps of this incarnation
  std::uint64_t dead_step_count_ = 0;
  std::optional<StepDead> last_dead_;
  std::optional<Label> last_agreed_;
  std::vector<Effect> effects_;
};

}  // namespace smon_rt
