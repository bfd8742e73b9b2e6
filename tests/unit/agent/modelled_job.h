#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/node_protocol.h"

namespace smon_rt {

/// The job of tests/model with a NodeProtocol for each agent: one rank a node, whose replicas node (rank + 1) mod ranks
/// holds. It does what a trace says, and plays the trainers, the network and the store between.
class ModelledJob {
 public:
  explicit ModelledJob(const nlohmann::json& bounds);

  /// Does what the event says. "", or why the agents do not let it happen; then nothing has changed.
  std::string apply(const nlohmann::json& event);

  /// The model lets a node free again once the recovery that fenced it is over; the code waits for the next fence.
  bool is_stricter_than_model(const nlohmann::json& event) const;

  // As in an event's `after`.
  std::vector<std::pair<Label, Stage>> own(std::size_t rank) const;
  std::set<Label> replicas(std::size_t rank) const;
  std::optional<Label> agreed() const { return agreed_; }

 private:
  enum class Trainer : std::uint8_t { kRuns, kWaits, kDead, kLost };
  struct Node {
    std::unique_ptr<NodeProtocol> agent;  // null: lost
    Trainer trainer = Trainer::kRuns;
    std::optional<Label> loaded;
    std::optional<Label> pinned;  // as the model has it
    std::optional<std::pair<std::set<Label>, std::set<Label>>> list;
  };
  struct Late {
    std::size_t rank;
    Label label;
    std::string place;
    std::uint32_t sender_incarnation;
  };

  std::string capture(const std::string& action, std::size_t rank, Label label);
  std::string restart(const std::string& action, std::size_t rank, Label label);
  std::string failure(const std::string& action, std::size_t rank, Label label, const std::string& place);
  std::string replicate(std::size_t rank, Label label);
  std::string free_older(std::size_t node);
  std::string list(std::size_t node);
  std::string choose(Label label);
  std::string fetch(std::size_t rank, Label label);
  std::string go_on(std::size_t rank);
  std::string arrive(std::size_t rank, Label label, const std::string& place, bool is_taken);
  void begin_recovery(std::uint32_t incarnation);
  void interrupt(std::size_t except);
  void settle();

  NodeProtocol& agent(std::size_t node) { return *nodes_[node].agent; }
  std::size_t holder(std::size_t rank) const { return (rank + 1) % nodes_.size(); }
  std::unique_ptr<NodeProtocol> new_agent(std::size_t rank) const;
  std::optional<OwnCopy> copy(std::size_t rank, Label label) const;
  bool is_kept(Label label) const;

  std::size_t own_slots_;
  std::size_t replica_slots_;
  std::vector<Node> nodes_;
  std::uint32_t incarnation_ = 0;
  std::optional<Label> choice_;
  std::vector<Label> complete_;
  std::set<Label> skipped_;
  std::vector<Late> late_;
  std::optional<Label> agreed_;
};

struct Replayed {
  /// What is wrong with the first event after which the job is not what the trace says, "" if it always is.
  std::string difference;
  /// To the end, or, of a counterexample, to `refused_at`, where the agents refused. Else to where they are stricter.
  bool is_whole = false;
};

Replayed replay(const nlohmann::json& trace);

}  // namespace smon_rt
