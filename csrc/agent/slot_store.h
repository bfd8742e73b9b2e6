#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/slot_memory.h"
#include "checkpoint/agent_messages.h"
#include "checkpoint/slot_format.h"

namespace smon_rt {

/// What the agent knows of a captured copy by itself: the slot's own words may be changed by whoever has it mapped.
struct CapturedCopy {
  Label label;
  std::uint64_t generation = 0;
  std::uint64_t content_hash = 0;
  std::string topology;
};

struct HeldSlot {
  std::shared_ptr<SlotMemory> memory;
  bool is_retired = false;  // of a size that the rank has no more
  std::optional<CapturedCopy> captured;
};

/// The memory of all slots of the agent, and the copies that were found damaged. Which slot has what is NodeProtocol's.
///
/// Threading: one thread.
class SlotStore {
 public:
  HeldSlot* find(const std::string& owner, std::uint32_t slot);
  void add(const std::string& owner, std::uint32_t slot, std::shared_ptr<SlotMemory> memory);
  void remove(const std::string& owner, std::uint32_t slot) { slots_.erase({owner, slot}); }

  /// Slots of another size are retired, as NodeProtocol does. How many of this size there are.
  std::size_t retire_others(const std::string& owner, std::uint64_t content_bytes);
  std::uint64_t memory_bytes() const;

  void add_damaged(const std::string& owner, const HeldSlot& slot, std::string reason);
  const std::vector<agent_messages::HeldCopy>& damaged() const { return damaged_; }
  void forget_damaged() { damaged_.clear(); }

 private:
  std::map<std::pair<std::string, std::uint32_t>, HeldSlot> slots_;
  std::vector<agent_messages::HeldCopy> damaged_;
};

agent_messages::HeldCopy held_copy(const std::string& owner, const HeldSlot& slot);

}  // namespace smon_rt
