#include "modelled_job.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>

namespace smon_rt {
namespace {

using nlohmann::json;

std::string owner_of(std::size_t rank) {
  return "rank=" + std::to_string(rank);
}

RankSpec spec_of(std::size_t rank, std::size_t world_size, std::size_t own_slots) {
  RankSpec spec;
  spec.owner = owner_of(rank);
  spec.world_size = world_size;
  spec.own_slots = own_slots;
  return spec;
}

std::string said(bool is_done, const char* otherwise) {
  return is_done ? "" : otherwise;
}

std::string said(const Result<void>& result) {
  return result ? "" : result.error().message;
}

}  // namespace

ModelledJob::ModelledJob(const json& bounds)
    : own_slots_(bounds.at("own_slots")), replica_slots_(bounds.at("replica_slots")), nodes_(bounds.at("ranks")) {
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    nodes_[rank].agent = new_agent(rank);
    // The model begins with all trainers at work.
    static_cast<void>(agent(rank).fence(owner_of(rank), 0));
    static_cast<void>(agent(rank).pin(owner_of(rank), kInitialState, {}));
    static_cast<void>(agent(rank).go_on(owner_of(rank), 0, 1));
  }
}

std::unique_ptr<NodeProtocol> ModelledJob::new_agent(std::size_t rank) const {
  NodeProtocolOptions options;
  options.replica_slots = replica_slots_;
  auto agent = std::make_unique<NodeProtocol>(options);
  agent->attach(spec_of(rank, nodes_.size(), own_slots_));
  static_cast<void>(agent->reserve(owner_of(rank), 1, 4096));
  return agent;
}

std::string ModelledJob::apply(const json& event) {
  const std::string action = event.at("action");
  const std::size_t rank = event.value("rank", std::size_t{0});
  const Label label{event.value("incarnation", std::uint32_t{0}), event.value("step", std::uint64_t{0})};
  const std::string place = event.value("place", "");
  const auto is_one_of = [&](const auto& names) { return std::ranges::find(names, action) != names.end(); };
  std::string why;
  if (is_one_of(std::array{"promise", "capture", "skip", "cancel", "copy_done", "hash_done", "drop_skipped"})) {
    why = capture(action, rank, label);
  } else if (is_one_of(std::array{"list_copies", "choose", "pin", "fetch", "go_on"})) {
    why = restart(action, rank, label);
  } else if (action == "replicate") {
    why = replicate(rank, label);
  } else if (action == "free") {
    why = free_older(rank);
  } else {
    why = failure(action, rank, label, place);
  }
  if (is_one_of(std::array{"hash_done", "replicate", "fetch", "choose", "arrive"})) {
    settle();
  }
  return why;
}

bool ModelledJob::is_stricter_than_model(const json& event) const {
  const std::size_t node = event.value("rank", std::size_t{0});
  const Node& there = nodes_[node];
  return event.at("action") == "free" && there.agent->is_fenced() &&
         (there.agent->incarnation() < incarnation_ || there.trainer != Trainer::kWaits);
}

std::string ModelledJob::capture(const std::string& action, std::size_t rank, Label label) {
  const std::string owner = owner_of(rank);
  const std::optional<OwnCopy> held = copy(rank, label);
  const std::uint32_t slot = held ? held->slot : 0;
  if (action == "promise") {
    const std::optional<PromiseMade> made = agent(rank).promise(owner);
    return said(made && made->label == label, "no promise of it");
  }
  if (action == "capture") {
    return said(agent(rank).began(owner, label, slot), "not promised");
  }
  if (action == "copy_done") {
    return said(agent(rank).copied(owner, label, slot), "not being written");
  }
  if (action == "hash_done") {
    return said(agent(rank).hashed(owner, label, slot), "not copied");
  }
  using agent_messages::SkipCause;
  if (action == "drop_skipped") {
    if (!skipped_.contains(label)) {
      return "nobody skipped it";
    }
    agent(rank).hear_dead({label, "", SkipCause::kNoPromise});
    agent(rank).drop_dead(label);
    return "";
  }
  agent(rank).skipped(owner, label, action == "skip" ? SkipCause::kNoPromise : SkipCause::kCancelled);
  skipped_.insert(label);
  return "";
}

std::string ModelledJob::replicate(std::size_t rank, Label label) {
  const Node& to = nodes_[holder(rank)];
  if (!nodes_[rank].agent || !to.agent || to.agent->replicas(owner_of(rank)).contains(label) ||
      !agent(rank).may_send(owner_of(rank), label)) {
    return "not to be sent";
  }
  return said(to.agent->receive_replica(owner_of(rank), label, agent(rank).incarnation()), "not taken");
}

std::string ModelledJob::free_older(std::size_t node) {
  const Holdings before = agent(node).holdings();
  const std::vector<OwnCopy> own_before = agent(node).own_copies(owner_of(node));
  for (std::size_t other = 0; other < nodes_.size(); ++other) {
    agent(node).forget_node(owner_of(other));
    if (other != node && nodes_[other].agent) {
      agent(node).hear(owner_of(other), agent(other).holdings());
    }
  }
  agent(node).free_older();
  return said(
      agent(node).holdings().replicas != before.replicas || agent(node).own_copies(owner_of(node)) != own_before,
      "nothing is freed");
}

std::string ModelledJob::restart(const std::string& action, std::size_t rank, Label label) {
  if (action == "list_copies") {
    return list(rank);
  }
  if (action == "choose") {
    return choose(label);
  }
  if (action == "pin") {
    nodes_[rank].pinned = label;
    return said(agent(rank).pin(owner_of(rank), label, complete_));
  }
  return action == "fetch" ? fetch(rank, label) : go_on(rank);
}

std::string ModelledJob::list(std::size_t node) {
  // Trainers ask for lists once the job's store says that all are fenced.
  const auto is_fenced = [](const Node& other) { return other.agent && other.agent->is_all_fenced(); };
  if (!std::ranges::all_of(nodes_, is_fenced)) {
    return "not all are fenced";
  }
  const Holdings holdings = agent(node).holdings();
  const std::size_t ward = (node + nodes_.size() - 1) % nodes_.size();
  nodes_[node].list.emplace(holdings.own.at(owner_of(node)), agent(node).replicas(owner_of(ward)));
  return "";
}

std::string ModelledJob::choose(Label label) {
  std::vector<Label> complete;
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    std::set<Label> of_rank = nodes_[rank].list->first;
    of_rank.insert(nodes_[holder(rank)].list->second.begin(), nodes_[holder(rank)].list->second.end());
    if (rank == 0) {
      complete.assign(of_rank.rbegin(), of_rank.rend());
    }
    std::erase_if(complete, [&](Label other) { return !of_rank.contains(other); });
  }
  choice_ = complete.empty() ? kInitialState : complete.front();
  complete_ = std::move(complete);
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    // The model takes a pin of an earlier recovery for this one's where it is of the same step: it has no event for it.
    if (nodes_[node].pinned == choice_) {
      static_cast<void>(agent(node).pin(owner_of(node), *choice_, complete_));
    }
  }
  return said(choice_ == label, "by the lists another step is chosen");
}

std::string ModelledJob::fetch(std::size_t rank, Label label) {
  for (const Node& node : nodes_) {
    if (node.agent->pinned() != choice_) {
      return "not pinned by all";
    }
  }
  const auto slot = agent(rank).fetch(owner_of(rank), label);
  if (!slot) {
    return slot.error().message;
  }
  if (!*slot && label != kInitialState) {
    if (!agent(holder(rank)).replicas(owner_of(rank)).contains(label)) {
      return "nobody has it";
    }
    agent(rank).add_fetched(owner_of(rank), label);
  }
  nodes_[rank].loaded = label;
  return "";
}

std::string ModelledJob::go_on(std::size_t rank) {
  if (!std::ranges::all_of(nodes_, [](const Node& node) { return node.loaded.has_value(); })) {
    return "not loaded by all";
  }
  std::string why = said(agent(rank).go_on(owner_of(rank), incarnation_, choice_->step + 1));
  nodes_[rank].trainer = Trainer::kRuns;
  if (std::ranges::all_of(nodes_, [](const Node& node) { return node.trainer == Trainer::kRuns; })) {
    choice_.reset();
    complete_.clear();
    for (Node& node : nodes_) {
      node.loaded.reset();
      node.pinned.reset();
    }
  }
  return why;
}

std::string ModelledJob::failure(const std::string& action, std::size_t rank, Label label, const std::string& place) {
  if (action == "refuse" || action == "arrive") {
    return arrive(rank, label, place, action == "arrive");
  }
  if (action == "begin_recovery") {
    begin_recovery(label.incarnation);
    return "";
  }
  if (!place.empty()) {
    late_.push_back({rank, label, place, place == "own" ? label.incarnation : agent(rank).incarnation()});
  }
  if (action == "fence") {
    return said(agent(rank).fence(owner_of(rank), incarnation_));
  }
  if (action == "crash") {
    nodes_[rank].trainer = Trainer::kDead;
    agent(rank).trainer_gone(owner_of(rank));
  } else if (action == "lose") {
    nodes_[rank].trainer = Trainer::kLost;
    nodes_[rank].agent.reset();
    nodes_[rank].pinned.reset();
    std::erase_if(late_,
                  [&](const Late& item) { return (item.place == "own" ? item.rank : holder(item.rank)) == rank; });
  } else {
    return "an action that this test does not know";
  }
  interrupt(rank);
  return "";
}

void ModelledJob::interrupt(std::size_t except) {
  choice_.reset();
  complete_.clear();
  for (std::size_t node = 0; node < nodes_.size(); ++node) {
    nodes_[node].loaded.reset();
    nodes_[node].list.reset();
    if (node != except && nodes_[node].agent) {
      agent(node).hear_interruption();
    }
  }
}

void ModelledJob::begin_recovery(std::uint32_t incarnation) {
  incarnation_ = incarnation;
  skipped_.clear();
  for (std::size_t rank = 0; rank < nodes_.size(); ++rank) {
    nodes_[rank].trainer = Trainer::kWaits;
    if (!nodes_[rank].agent) {
      nodes_[rank].agent = new_agent(rank);
      static_cast<void>(agent(rank).fence(owner_of(rank), incarnation));
    }
  }
}

std::string ModelledJob::arrive(std::size_t rank, Label label, const std::string& place, bool is_taken) {
  const auto found = std::ranges::find_if(
      late_, [&](const Late& item) { return item.rank == rank && item.label == label && item.place == place; });
  if (found == late_.end()) {
    return "it was not on its way";
  }
  const std::uint32_t sender_incarnation = found->sender_incarnation;
  late_.erase(found);
  bool was_taken = false;
  if (place == "own") {
    for (std::uint32_t slot = 0; slot < own_slots_ * 4; ++slot) {
      was_taken = agent(rank).copied(owner_of(rank), label, slot) || was_taken;
    }
  } else if (is_taken || !skipped_.contains(label)) {
    // A holder that has not heard of the skip yet takes the copy, and drops it when it does; the model's agents hear of
    // it together, and forget it once nobody has anything of the step.
    was_taken = agent(holder(rank)).receive_replica(owner_of(rank), label, sender_incarnation);
  }
  return said(was_taken == is_taken, was_taken ? "it is taken" : "it is refused");
}

bool ModelledJob::is_kept(Label label) const {
  return !choice_ || (label <= *choice_ && std::ranges::find(complete_, label) != complete_.end());
}

// What an observer outside would call agreed.
void ModelledJob::settle() {
  std::vector<Holdings> holdings;
  for (const Node& node : nodes_) {
    if (!node.agent) {
      continue;
    }
    if (!choice_ && node.trainer == Trainer::kWaits && node.agent->incarnation() == incarnation_) {
      return;
    }
    holdings.push_back(node.agent->holdings());
  }
  std::vector<const Holdings*> pointers;
  std::ranges::transform(holdings, std::back_inserter(pointers), [](const Holdings& held) { return &held; });
  const auto newest = newest_agreed(pointers, {nodes_.size(), true, [this](Label label) { return is_kept(label); }});
  if (newest && (!agreed_ || *newest > *agreed_)) {
    agreed_ = newest;
  }
}

std::optional<OwnCopy> ModelledJob::copy(std::size_t rank, Label label) const {
  if (nodes_[rank].agent) {
    for (const OwnCopy& copy : nodes_[rank].agent->own_copies(owner_of(rank))) {
      if (copy.label == label) {
        return copy;
      }
    }
  }
  return std::nullopt;
}

std::vector<std::pair<Label, Stage>> ModelledJob::own(std::size_t rank) const {
  std::vector<std::pair<Label, Stage>> copies;
  if (nodes_[rank].agent) {
    for (const OwnCopy& copy : nodes_[rank].agent->own_copies(owner_of(rank))) {
      copies.emplace_back(copy.label, copy.stage);
    }
  }
  return copies;
}

std::set<Label> ModelledJob::replicas(std::size_t rank) const {
  const Node& node = nodes_[holder(rank)];
  return node.agent ? node.agent->replicas(owner_of(rank)) : std::set<Label>();
}

namespace {

// What a trace says that there is.
struct Expected {
  std::map<std::size_t, std::vector<std::pair<Label, Stage>>> own;
  std::map<std::size_t, std::set<Label>> replicas;
  std::optional<Label> agreed;

  void change(const json& after) {
    const auto label_of = [](const json& item) { return Label{item.at(0), item.at(1)}; };
    static const std::map<std::string, Stage> kStages{{"promised", Stage::kPromised},
                                                      {"writing", Stage::kWriting},
                                                      {"copied", Stage::kCopied},
                                                      {"captured", Stage::kCaptured}};
    const json own_after = after.value("own", json::object());
    for (const auto& [rank, copies] : own_after.items()) {
      auto& held = own[std::stoul(rank)];
      held.clear();
      for (const json& copy : copies) {
        held.emplace_back(label_of(copy), kStages.at(copy.at(2)));
      }
    }
    const json replicas_after = after.value("replicas", json::object());
    for (const auto& [rank, labels] : replicas_after.items()) {
      auto& held = replicas[std::stoul(rank)];
      held.clear();
      for (const json& label : labels) {
        held.insert(label_of(label));
      }
    }
    if (after.contains("agreed")) {
      agreed = label_of(after.at("agreed"));
    }
  }

  std::string difference(const ModelledJob& job, std::size_t ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (job.own(rank) != own[rank]) {
        return "own copies of rank " + std::to_string(rank);
      }
      if (job.replicas(rank) != replicas[rank]) {
        return "replicas of rank " + std::to_string(rank);
      }
    }
    return job.agreed() == agreed ? "" : "what is agreed";
  }
};

}  // namespace

Replayed replay(const json& trace) {
  ModelledJob job(trace.at("bounds"));
  const std::size_t ranks = trace.at("bounds").at("ranks");
  Expected expected;
  std::size_t index = 0;
  for (const json& event : trace.at("events")) {
    const auto where = [&] {
      return trace.at("name").get<std::string>() + ", event " + std::to_string(index) + " " + event.dump() + ": ";
    };
    if (job.is_stricter_than_model(event)) {
      return {"", false};
    }
    const std::string refusal = job.apply(event);
    const bool has_to_refuse = trace.at("refused_at") == index;
    if (has_to_refuse ? refusal.empty() : !refusal.empty()) {
      return {where() + (has_to_refuse ? "it happened" : refusal), false};
    }
    if (!has_to_refuse) {
      expected.change(event.at("after"));
    }
    const std::string difference = expected.difference(job, ranks);
    if (!difference.empty()) {
      return {where() + difference + " are not what the trace says", false};
    }
    if (has_to_refuse) {
      return {"", true};
    }
    ++index;
  }
  return {"", true};
}

}  // namespace smon_rt
