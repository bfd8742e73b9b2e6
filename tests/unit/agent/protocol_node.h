#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/node_protocol.h"

namespace smon_rt {

/// A NodeProtocol of one node without holders, with the shorthand that tests want: ranks are "a", "b", ...
class ProtocolNode {
 public:
  explicit ProtocolNode(std::size_t world_size, std::uint64_t every = 1) : world_size_(world_size), every_(every) {}

  NodeProtocol& operator*() { return protocol_; }
  NodeProtocol* operator->() { return &protocol_; }

  static std::string owner(std::size_t rank) { return {static_cast<char>('a' + rank)}; }

  void attach(std::size_t rank) {
    protocol_.attach({owner(rank), world_size_, world_size_, every_, 2});
    static_cast<void>(protocol_.reserve(owner(rank), 1, 4096));
  }
  /// Every rank, anew, to where it goes on from `label`.
  bool restart(std::uint32_t incarnation, Label label, const std::vector<Label>& kept = {}) {
    bool is_done = true;
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      attach(rank);
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      is_done = protocol_.fence(owner(rank), incarnation).has_value() && is_done;
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      is_done = protocol_.pin(owner(rank), label, kept).has_value() && is_done;
    }
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      is_done = protocol_.go_on(owner(rank), incarnation, label.step + 1).has_value() && is_done;
    }
    return is_done;
  }

  std::vector<Effect> advance() {
    std::vector<Effect> effects = protocol_.advance();
    for (const Effect& effect : effects) {
      if (const auto* const made = std::get_if<PromiseMade>(&effect)) {
        promises_[made->owner] = *made;
      }
    }
    return effects;
  }
  /// The newest that the rank has been given.
  std::optional<PromiseMade> promise(std::size_t rank) const {
    const auto found = promises_.find(owner(rank));
    return found == promises_.end() ? std::nullopt : std::optional(found->second);
  }
  /// As promised, from its beginning to its hash.
  bool capture(std::size_t rank) {
    const PromiseMade made = *promise(rank);
    return protocol_.began(made.owner, made.label, made.slot) && protocol_.copied(made.owner, made.label, made.slot) &&
           protocol_.hashed(made.owner, made.label, made.slot);
  }
  /// The next step by every rank. What was agreed by it.
  std::optional<Label> capture_all() {
    advance();
    for (std::size_t rank = 0; rank < world_size_; ++rank) {
      static_cast<void>(capture(rank));
    }
    advance();
    return protocol_.agreed();
  }

 private:
  std::size_t world_size_;
  std::uint64_t every_;
  NodeProtocol protocol_{NodeProtocolOptions{}};
  std::map<std::string, PromiseMade> promises_;
};

template <typename T>
std::vector<T> effects_of(const std::vector<Effect>& effects) {
  std::vector<T> found;
  for (const Effect& effect : effects) {
    if (const T* const one = std::get_if<T>(&effect)) {
      found.push_back(*one);
    }
  }
  return found;
}

}  // namespace smon_rt
