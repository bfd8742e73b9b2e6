#include "agent/holdings.h"

namespace smon_rt {
namespace {

using ByOwner = std::map<std::string, std::set<Label>>;

// How many owners have each step in one of the nodes' `held`.
std::map<Label, std::set<std::string>> owners_by_label(std::span<const Holdings* const> nodes,
                                                       ByOwner Holdings::* held) {
  std::map<Label, std::set<std::string>> owners;
  for (const Holdings* node : nodes) {
    for (const auto& [owner, labels] : node->*held) {
      for (const Label& label : labels) {
        owners[label].insert(owner);
      }
    }
  }
  return owners;
}

}  // namespace

std::optional<Label> newest_agreed(std::span<const Holdings* const> nodes, const Agreement& agreement) {
  const auto own = owners_by_label(nodes, &Holdings::own);
  const auto replicas =
      agreement.needs_replicas ? owners_by_label(nodes, &Holdings::replicas) : decltype(owners_by_label({}, nullptr)){};
  for (auto entry = own.rbegin(); entry != own.rend(); ++entry) {
    const auto& [label, owners] = *entry;
    if (owners.size() < agreement.owner_count || (agreement.counts && !agreement.counts(label))) {
      continue;
    }
    if (!agreement.needs_replicas) {
      return label;
    }
    const auto replicated = replicas.find(label);
    if (replicated != replicas.end() && replicated->second.size() >= agreement.owner_count) {
      return label;
    }
  }
  return std::nullopt;
}

}  // namespace smon_rt
