#include "agent/slot_table.h"

#include <algorithm>
#include <utility>

namespace smon_rt {
namespace {

// Numbers after an adopted one have to be free as well.
constexpr std::uint32_t kMaxAdoptedNumber = 0x7fffffff;

}  // namespace

std::vector<std::uint32_t> SlotTable::reserve(std::uint32_t layout_epoch, std::uint64_t content_bytes,
                                              std::size_t count) {
  if (content_bytes != content_bytes_) {
    for (Slot& slot : slots_) {
      slot.is_retired = true;
    }
  }
  layout_epoch_ = layout_epoch;
  content_bytes_ = content_bytes;
  std::vector<std::uint32_t> numbers;
  for (Slot& slot : slots_) {
    slot.is_retired = slot.is_retired || numbers.size() == count;
    if (!slot.is_retired) {
      numbers.push_back(slot.number);
    }
  }
  while (numbers.size() < count) {
    Slot slot;
    slot.number = next_number_++;
    numbers.push_back(slot.number);
    slots_.push_back(slot);
  }
  end_retired();
  return numbers;
}

bool SlotTable::adopt(std::uint32_t slot, std::uint32_t layout_epoch, std::uint64_t content_bytes,
                      std::optional<Label> label) {
  const auto is_same = [&](const Slot& other) { return other.number == slot || (label && other.label == label); };
  if (slot > kMaxAdoptedNumber || std::ranges::any_of(slots_, is_same)) {
    return false;
  }
  layout_epoch_ = layout_epoch;
  content_bytes_ = content_bytes;
  Slot adopted;
  adopted.number = slot;
  adopted.label = label;
  adopted.stage = Stage::kCaptured;
  slots_.push_back(adopted);
  next_number_ = std::max(next_number_, slot + 1);
  return true;
}

std::optional<std::uint32_t> SlotTable::promise(Label label) {
  Slot* const slot = find(label) ? nullptr : free_slot();
  if (slot == nullptr) {
    return std::nullopt;
  }
  slot->label = label;
  slot->stage = Stage::kPromised;
  return slot->number;
}

std::optional<std::uint32_t> SlotTable::add_captured(Label label) {
  const std::optional<std::uint32_t> number = promise(label);
  if (number) {
    move_on(label, *number, Stage::kPromised, Stage::kCaptured);
  }
  return number;
}

bool SlotTable::move_on(Label label, std::uint32_t number, Stage before, Stage after) {
  for (Slot& slot : slots_) {
    if (slot.number == number && slot.label == label && slot.stage == before) {
      slot.stage = after;
      return true;
    }
  }
  return false;
}

void SlotTable::drop_if(const std::function<bool(const OwnCopy&)>& gone) {
  for (Slot& slot : slots_) {
    if (slot.label && gone({*slot.label, slot.stage, slot.number})) {
      slot.label.reset();
    }
  }
  end_retired();
}

void SlotTable::abandon_if(const std::function<bool(const OwnCopy&)>& gone) {
  for (Slot& slot : slots_) {
    if (slot.label && gone({*slot.label, slot.stage, slot.number})) {
      slot.label.reset();
      slot.is_retired = true;
    }
  }
  end_retired();
}

std::optional<OwnCopy> SlotTable::find(Label label) const {
  for (const Slot& slot : slots_) {
    if (slot.label == label) {
      return OwnCopy{label, slot.stage, slot.number};
    }
  }
  return std::nullopt;
}

std::vector<OwnCopy> SlotTable::copies() const {
  std::vector<OwnCopy> copies;
  for (const Slot& slot : slots_) {
    if (slot.label) {
      copies.push_back({*slot.label, slot.stage, slot.number});
    }
  }
  std::ranges::sort(copies, {}, &OwnCopy::label);
  return copies;
}

std::set<Label> SlotTable::captured() const {
  std::set<Label> labels;
  for (const Slot& slot : slots_) {
    if (slot.label && slot.stage == Stage::kCaptured) {
      labels.insert(*slot.label);
    }
  }
  return labels;
}

std::vector<std::uint32_t> SlotTable::take_ended() {
  return std::exchange(ended_, {});
}

SlotTable::Slot* SlotTable::free_slot() {
  const auto found = std::ranges::find_if(slots_, [](const Slot& slot) { return !slot.is_retired && !slot.label; });
  return found == slots_.end() ? nullptr : &*found;
}

void SlotTable::end_retired() {
  std::erase_if(slots_, [this](const Slot& slot) {
    const bool ends = slot.is_retired && !slot.label;
    if (ends) {
      ended_.push_back(slot.number);
    }
    return ends;
  });
}

}  // namespace smon_rt
