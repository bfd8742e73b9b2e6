// How a NodeAgent answers a restart: fence, list, pin, fetch, go on, reject; and tools that list and verify.
#include <asio/post.hpp>

#include <algorithm>
#include <utility>

#include "agent/node_agent.h"

namespace smon_rt {
namespace {

namespace am = agent_messages;

}  // namespace

void NodeAgent::handle(const Sender& sender, const am::Fence& fence) {
  const bool was_all_fenced = protocol_.is_all_fenced() && protocol_.incarnation() == fence.incarnation;
  const auto fenced = protocol_.fence(sender->owner, fence.incarnation);
  reply(sender, fenced);
  if (fenced && protocol_.is_all_fenced() && !was_all_fenced) {
    log_.write("all ranks are fenced in incarnation " + std::to_string(fence.incarnation));
    hash_all_again();
  }
  answer_listings();
}

// What was captured may have changed since: a bit that flipped, a process that wrote where it should not.
void NodeAgent::hash_all_again() {
  for (const std::string& owner : protocol_.owners()) {
    for (const OwnCopy& copy : protocol_.own_copies(owner)) {
      const HeldSlot* const held = slots_.find(owner, copy.slot);
      if (copy.stage != Stage::kCaptured || held == nullptr || !held->captured) continue;
      ++running_hashes_;
      recovery_workers_.add(
          [this, job = HashJob{owner, copy.slot, copy.label, held->memory}, expected = *held->captured] {
            const bool is_intact = job.memory->compute_hash(expected.generation) == expected.content_hash;
            asio::post(io_, [this, job, is_intact] { finish_check(job, is_intact); });
          });
    }
  }
}

void NodeAgent::finish_check(const HashJob& job, bool is_intact) {
  --running_hashes_;
  HeldSlot* const held = slots_.find(job.owner, job.slot);
  // One that was freed meanwhile, and perhaps written anew, is not damaged.
  const std::vector<OwnCopy> copies = protocol_.own_copies(job.owner);
  const OwnCopy expected{job.label, Stage::kCaptured, job.slot};
  const bool is_there =
      held != nullptr && held->memory == job.memory && std::ranges::find(copies, expected) != copies.end();
  if (is_there && !is_intact) {
    log_.write(job.owner + ": " + to_text(job.label) + " has changed since it was captured: not used");
    slots_.add_damaged(job.owner, *held, "its bytes have changed since it was captured");
    protocol_.damaged(job.owner, job.label, job.slot, am::SkipCause::kFailed);
    advance();
  }
  answer_listings();
}

void NodeAgent::handle(const Sender& sender, const am::List& list) {
  add_listing(sender, list.owner, trainer_of(sender) != nullptr);
}

void NodeAgent::handle(const Sender& sender, const am::VerifyRequest&) {
  hash_all_again();
  add_listing(sender, "", false);
}

void NodeAgent::add_listing(const Sender& sender, const std::string& owner, bool waits_for_fence) {
  listings_.push_back({sender, owner, waits_for_fence, false});
  sender->pause();
  with_disk_listing([this, sender] {
    for (PendingListing& pending : listings_) pending.has_disk = pending.has_disk || pending.sender == sender;
    answer_listings();
  });
}

void NodeAgent::answer_listings() {
  if (running_hashes_ > 0 || listings_.empty()) return;
  const auto is_ready = [this](const PendingListing& pending) {
    return pending.has_disk && (!pending.waits_for_fence || protocol_.is_all_fenced());
  };
  std::vector<PendingListing> answered;
  std::ranges::copy_if(listings_, std::back_inserter(answered), is_ready);
  std::erase_if(listings_, is_ready);
  for (const PendingListing& pending : answered) {
    pending.sender->send(listing(pending.owner));
    pending.sender->resume();
  }
}

am::Listing NodeAgent::listing(const std::string& owner) const {
  am::Listing listing;
  for (const std::string& each : protocol_.owners()) {
    if (!owner.empty() && each != owner) continue;
    for (const OwnCopy& copy : protocol_.own_copies(each)) {
      const HeldSlot* const held = slots_.find(each, copy.slot);
      if (copy.stage == Stage::kCaptured && held != nullptr) listing.copies.push_back(held_copy(each, *held));
    }
  }
  for (const am::HeldCopy& copy : slots_.damaged()) {
    if (owner.empty() || copy.owner == owner) listing.copies.push_back(copy);
  }
  add_disk_copies(owner, listing);
  for (am::HeldCopy& copy : listing.copies) {
    copy.is_tried = protocol_.tried().contains(copy.label);
    if (copy.is_tried && copy.reason.empty()) copy.reason = protocol_.tried().reason(copy.label);
  }
  std::ranges::sort(listing.copies, std::greater(), &am::HeldCopy::label);
  // The oldest are what a packet has no room for.
  while (!listing.copies.empty() && am::encode(listing).size() > am::kMaxPacketBytes) listing.copies.pop_back();
  return listing;
}

void NodeAgent::handle(const Sender& sender, const am::Pin& pin) {
  reply(sender, protocol_.pin(sender->owner, pin.label, pin.kept));
}

void NodeAgent::handle(const Sender& sender, const am::Fetch& fetch) {
  if (fetch.tier == am::Tier::kMemory) {
    fetch_from_memory(sender, fetch);
    return;
  }
  fetch_from_disk(sender, fetch);
}

void NodeAgent::fetch_from_memory(const Sender& sender, const am::Fetch& fetch) {
  const Trainer* const trainer = trainer_of(sender);
  std::optional<std::uint32_t> slot;
  if (trainer != nullptr) {
    const auto fetched = protocol_.fetch(fetch.owner, fetch.label);
    if (!fetched) {
      reply(sender, fetched.error());
      return;
    }
    slot = *fetched;
  } else {
    for (const OwnCopy& copy : protocol_.own_copies(fetch.owner)) {
      if (copy.label == fetch.label && copy.stage == Stage::kCaptured) slot = copy.slot;
    }
  }
  const HeldSlot* const held = slot ? slots_.find(fetch.owner, *slot) : nullptr;
  if (held == nullptr || !held->captured) {
    reply(sender, Error{"no copy of " + to_text(fetch.label) + " of " + fetch.owner + " is in memory here"});
    return;
  }
  if (trainer != nullptr && trainer->hello.topology != held->captured->topology) {
    reply(sender, Error{to_text(fetch.label) + " of " + fetch.owner + " is of another job's shape: it has '" +
                        held->captured->topology + "', this trainer '" + trainer->hello.topology + "'"});
    return;
  }
  auto descriptor = held->memory->open_for_reading();
  if (!descriptor) {
    reply(sender, std::move(descriptor).error());
    return;
  }
  Descriptors descriptors;
  descriptors.push_back(std::move(*descriptor));
  sender->send(am::Fetched{held->memory->content_bytes()}, std::move(descriptors));
}

void NodeAgent::handle(const Sender& sender, const am::GoOn& go_on) {
  const auto gone_on = protocol_.go_on(sender->owner, go_on.incarnation, go_on.next_step);
  if (gone_on) {
    slots_.forget_damaged();
    log_.write(sender->owner + ": goes on with step " + std::to_string(go_on.next_step) + " in incarnation " +
               std::to_string(go_on.incarnation));
  }
  reply(sender, gone_on);
}

void NodeAgent::handle(const Sender& sender, const am::Reject& reject) {
  protocol_.reject(reject.label, reject.reason);
  // Durable before it is answered.
  advance();
  reply(sender, {});
}

}  // namespace smon_rt
