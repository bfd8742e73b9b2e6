#include "checkpoint/slot_set.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace smon_rt {

Result<void> SlotSet::add(std::uint32_t epoch, std::uint64_t content_bytes, const std::vector<std::uint32_t>& numbers,
                          std::vector<OwnedDescriptor> descriptors, bool is_for_gpu) {
  if (numbers.empty() || numbers.size() != descriptors.size()) {
    return Error{"checkpoint agent: it gave " + std::to_string(numbers.size()) + " slots and " +
                 std::to_string(descriptors.size()) + " descriptors"};
  }
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    auto mapping = SlotMapping::map_writable(std::move(descriptors[i]), content_bytes);
    if (!mapping) return std::move(mapping).error();
    Slot& slot = slots_[numbers[i]];
    let_go(slot);
    slot = {epoch, content_bytes, std::move(*mapping), false};
    if (!is_for_gpu) continue;
    // Without it copies are slower, and no less right.
    const auto registered = copier_.register_host(slot.mapping->bytes());
    slot.is_registered = registered.has_value();
    if (!registered) log(LogLevel::kWarning, "checkpoint: memory is not page-locked: " + registered.error().message);
  }
  publish_descriptors();
  return {};
}

void SlotSet::let_go(Slot& slot) {
  if (slot.mapping != nullptr && slot.is_registered) copier_.unregister_host(slot.mapping->bytes());
  slot = {};
}

std::shared_ptr<SlotMapping> SlotSet::find(std::uint32_t number, std::uint32_t epoch) const {
  const auto found = slots_.find(number);
  return found == slots_.end() || found->second.epoch != epoch ? nullptr : found->second.mapping;
}

bool SlotSet::has_older_than(std::uint32_t epoch) const {
  return std::ranges::any_of(slots_, [&](const auto& each) { return each.second.epoch < epoch; });
}

void SlotSet::drop_older_than(std::uint32_t epoch) {
  for (auto& [number, slot] : slots_) {
    if (slot.epoch < epoch) let_go(slot);
  }
  std::erase_if(slots_, [](const auto& each) { return each.second.mapping == nullptr; });
  publish_descriptors();
}

void SlotSet::clear() {
  for (auto& [number, slot] : slots_) let_go(slot);
  slots_.clear();
  publish_descriptors();
}

std::vector<AgentClient::Request> SlotSet::adoptions() const {
  std::map<std::uint32_t, agent_messages::Adopt> adopted;
  std::map<std::uint32_t, std::vector<int>> descriptors;
  for (const auto& [number, slot] : slots_) {
    if (!slot.mapping->fd().is_ours()) continue;  // closed by the job: it stays mapped here, and is of no more use
    auto& adopt = adopted[slot.epoch];
    adopt.layout_epoch = slot.epoch;
    adopt.content_bytes = slot.content_bytes;
    adopt.slots.push_back(number);
    descriptors[slot.epoch].push_back(slot.mapping->fd().fd());
  }
  std::vector<AgentClient::Request> requests;
  for (auto& [epoch, adopt] : adopted) requests.push_back({std::move(adopt), std::move(descriptors[epoch]), {}});
  return requests;
}

void SlotSet::publish_descriptors() {
  std::size_t i = 0;
  for (const auto& [number, slot] : slots_) {
    if (i == descriptors_.size()) break;
    descriptors_[i++].store(slot.mapping->fd().fd(), std::memory_order_release);
  }
  for (; i < descriptors_.size(); ++i) descriptors_[i].store(0, std::memory_order_release);
}

void SlotSet::close_in_child() noexcept {
  for (const auto& each : descriptors_) {
    const int fd = each.load(std::memory_order_acquire);
    if (fd > 0) ::close(fd);
  }
}

}  // namespace smon_rt
