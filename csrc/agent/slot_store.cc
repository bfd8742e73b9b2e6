#include "agent/slot_store.h"

namespace smon_rt {
namespace {

constexpr std::size_t kMaxDamaged = 64;

}  // namespace

HeldSlot* SlotStore::find(const std::string& owner, std::uint32_t slot) {
  const auto found = slots_.find({owner, slot});
  return found == slots_.end() ? nullptr : &found->second;
}

void SlotStore::add(const std::string& owner, std::uint32_t slot, std::shared_ptr<SlotMemory> memory) {
  slots_[{owner, slot}] = HeldSlot{std::move(memory), false, std::nullopt};
}

std::size_t SlotStore::retire_others(const std::string& owner, std::uint64_t content_bytes) {
  std::size_t count = 0;
  for (auto& [key, slot] : slots_) {
    if (key.first != owner) continue;
    slot.is_retired = slot.is_retired || slot.memory->content_bytes() != content_bytes;
    count += slot.is_retired ? 0 : 1;
  }
  return count;
}

std::uint64_t SlotStore::memory_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [key, slot] : slots_) bytes += slot.memory->file_bytes();
  return bytes;
}

void SlotStore::add_damaged(const std::string& owner, const HeldSlot& slot, std::string reason) {
  if (damaged_.size() >= kMaxDamaged) return;
  agent_messages::HeldCopy copy = held_copy(owner, slot);
  copy.is_intact = false;
  copy.reason = std::move(reason);
  damaged_.push_back(std::move(copy));
}

agent_messages::HeldCopy held_copy(const std::string& owner, const HeldSlot& slot) {
  agent_messages::HeldCopy copy;
  copy.owner = owner;
  copy.tier = agent_messages::Tier::kMemory;
  copy.content_bytes = slot.memory->content_bytes();
  copy.is_intact = true;
  if (slot.captured) {
    copy.label = slot.captured->label;
    copy.content_hash = slot.captured->content_hash;
    copy.topology = slot.captured->topology;
  }
  return copy;
}

}  // namespace smon_rt
