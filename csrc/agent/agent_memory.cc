// How a NodeAgent gives slots to trainers, and takes back those that an earlier agent gave.
#include <asio/post.hpp>
#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "agent/node_agent.h"

namespace smon_rt {
namespace {

namespace am = agent_messages;

Result<OwnedDescriptor> duplicate(const SlotMemory& memory) {
  OwnedDescriptor copy(move_from_standard_streams(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)));
  if (!copy.is_open()) return Error{"the agent has no descriptor left: raise its limit of open files"};
  return copy;
}

/// The copy in a slot of an earlier agent, if its bytes are what that agent hashed.
std::optional<CapturedCopy> check_adopted(const SlotMemory& memory, const std::string& owner,
                                          const std::string& run_id) {
  const std::optional<SlotContent> content = memory.read_header();
  if (!content || content->content_hash == 0 || content->owner != owner || content->run_id != run_id) {
    return std::nullopt;
  }
  if (memory.compute_hash(content->generation) != content->content_hash) return std::nullopt;
  return CapturedCopy{content->label, content->generation, content->content_hash, content->topology};
}

}  // namespace

// Memory first, then NodeProtocol: nothing is promised in a slot that cannot be had.
void NodeAgent::handle(const Sender& sender, const am::Reserve& reserve) {
  const std::size_t wanted = trainer_of(sender)->hello.own_slots;
  const std::size_t there = slots_.retire_others(sender->owner, reserve.content_bytes);
  const std::size_t missing = wanted - std::min(wanted, there);
  const std::uint64_t content_bytes = std::min(reserve.content_bytes, std::uint64_t{1} << 50);
  const std::uint64_t bytes = missing * slot_file_bytes(content_bytes);
  const MemoryBudget budget = read_memory_budget();
  budget_bytes_ = budget.available_bytes;
  const std::string purpose = std::to_string(missing) + " slots of " + sender->owner;
  // What others are about to take is not in the node's numbers yet.
  if (auto checked = check_memory_budget(budget, bytes + reserving_bytes_, purpose); missing > 0 && !checked) {
    reply(sender, checked);
    return;
  }
  if (missing == 0) {
    finish_reserve(sender, reserve, {});
    return;
  }
  reserving_bytes_ += bytes;
  sender->pause();
  recovery_workers_.add([this, sender, reserve, missing, bytes] {
    std::vector<std::shared_ptr<SlotMemory>> fresh;
    Result<void> made;
    while (made && fresh.size() < missing) {
      auto memory = SlotMemory::make(reserve.content_bytes);
      if (memory) {
        fresh.push_back(std::move(*memory));
      } else {
        made = std::move(memory).error();
      }
    }
    asio::post(io_, [this, sender, reserve, bytes, made = std::move(made), fresh = std::move(fresh)]() mutable {
      reserving_bytes_ -= bytes;
      if (!made) {
        reply(sender, made);
      } else {
        finish_reserve(sender, reserve, std::move(fresh));
      }
      sender->resume();
      advance();
    });
  });
}

void NodeAgent::finish_reserve(const Sender& sender, const am::Reserve& reserve,
                               std::vector<std::shared_ptr<SlotMemory>> fresh) {
  Trainer* const trainer = trainer_of(sender);
  if (trainer == nullptr) return;  // replaced meanwhile
  auto numbers = protocol_.reserve(sender->owner, reserve.layout_epoch, reserve.content_bytes);
  if (!numbers) {
    reply(sender, std::move(numbers).error());
    return;
  }
  for (const std::uint32_t number : *numbers) {
    if (slots_.find(sender->owner, number) != nullptr || fresh.empty()) continue;
    slots_.add(sender->owner, number, std::move(fresh.back()));
    fresh.pop_back();
  }
  trainer->layout_epoch = reserve.layout_epoch;
  log_.write(sender->owner + ": " + std::to_string(numbers->size()) + " slots of " +
             describe_bytes(slot_file_bytes(reserve.content_bytes)) + ", layout " +
             std::to_string(reserve.layout_epoch));
  reply_with_slots(sender, *numbers);
  tell_others();
}

void NodeAgent::reply_with_slots(const Sender& sender, const std::vector<std::uint32_t>& slots) {
  am::Reserved reserved;
  Descriptors descriptors;
  for (const std::uint32_t slot : slots) {
    const HeldSlot* const held = slots_.find(sender->owner, slot);
    if (held == nullptr) continue;
    auto copy = duplicate(*held->memory);
    if (!copy || descriptors.size() >= am::kMaxDescriptors) {
      reply(sender, copy ? Error{"more slots than one packet can carry"} : std::move(copy).error());
      return;
    }
    reserved.slots.push_back(slot);
    descriptors.push_back(std::move(*copy));
  }
  sender->send(reserved, std::move(descriptors));
}

void NodeAgent::adopt(const Sender& sender, const am::Adopt& adopt, Descriptors descriptors) {
  if (descriptors.size() != adopt.slots.size() || adopt.slots.empty()) {
    reply(sender, Error{std::to_string(adopt.slots.size()) + " slots came with " + std::to_string(descriptors.size()) +
                        " descriptors"});
    return;
  }
  std::vector<std::shared_ptr<SlotMemory>> memories;
  for (OwnedDescriptor& descriptor : descriptors) {
    auto memory = SlotMemory::adopt(std::move(descriptor), adopt.content_bytes);
    if (!memory) {
      reply(sender, std::move(memory).error());
      return;
    }
    memories.push_back(std::move(*memory));
  }
  sender->pause();
  recovery_workers_.add(
      [this, sender, adopt, memories = std::move(memories), run_id = options_.run_id, owner = sender->owner] {
        std::vector<std::optional<CapturedCopy>> copies;
        for (const auto& memory : memories) copies.push_back(check_adopted(*memory, owner, run_id));
        asio::post(io_, [this, sender, adopt, memories, copies = std::move(copies)] {
          finish_adopt(sender, adopt, memories, copies);
          sender->resume();
          advance();
        });
      });
}

void NodeAgent::finish_adopt(const Sender& sender, const am::Adopt& adopt,
                             const std::vector<std::shared_ptr<SlotMemory>>& memories,
                             const std::vector<std::optional<CapturedCopy>>& copies) {
  Trainer* const trainer = trainer_of(sender);
  if (trainer == nullptr) return;
  std::vector<AdoptedSlot> adopted;
  for (std::size_t i = 0; i < memories.size(); ++i) {
    adopted.push_back({adopt.slots[i], copies[i] ? std::optional(copies[i]->label) : std::nullopt});
  }
  if (auto done = protocol_.adopt(sender->owner, adopt.layout_epoch, adopt.content_bytes, adopted); !done) {
    reply(sender, done);
    return;
  }
  for (std::size_t i = 0; i < memories.size(); ++i) {
    slots_.add(sender->owner, adopt.slots[i], memories[i]);
    slots_.find(sender->owner, adopt.slots[i])->captured = copies[i];
  }
  trainer->layout_epoch = adopt.layout_epoch;
  log_.write(sender->owner + ": " + std::to_string(memories.size()) + " slots of an earlier agent");
  reply_with_slots(sender, adopt.slots);
  tell_others();
}

}  // namespace smon_rt
