#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "checkpoint/slot_format.h"

namespace smon_rt {

/// What the agent of one node has, as it tells the others: complete and verified copies only, by owner.
struct Holdings {
  std::uint32_t incarnation = 0;  // that the agent serves
  std::map<std::string, std::set<Label>> own;
  std::map<std::string, std::set<Label>> replicas;
};

/// What makes a step agreed.
struct Agreement {
  std::size_t owner_count = 0;        // every rank of the job
  bool needs_replicas = false;        // each copy has to be at its holder as well
  std::function<bool(Label)> counts;  // steps that count; empty: all
};

/// The newest step of which every owner has what `agreement` asks for, by what is held now.
std::optional<Label> newest_agreed(std::span<const Holdings* const> nodes, const Agreement& agreement);

}  // namespace smon_rt
