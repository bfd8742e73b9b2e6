// How a NodeAgent uses its disk tier: agreed steps go there, lists and fetches ask it, and nothing waits for it for
// long.
#include <asio/post.hpp>

#include <algorithm>
#include <chrono>
#include <utility>

#include "agent/node_agent.h"

namespace smon_rt {
namespace {

namespace am = agent_messages;

// A disk that has not listed by then has nothing, as far as this restart is concerned: memory may have all of it.
constexpr std::chrono::seconds kListWithin{5};

}  // namespace

void NodeAgent::open_disk(const am::Hello& hello) {
  if (hello.disk_dir.empty()) return;
  disk_every_ = std::max<std::uint64_t>(1, hello.disk_every);
  if (disk_ != nullptr && disk_dir_ == hello.disk_dir) return;
  disk_dir_ = hello.disk_dir;
  DiskTierOptions options;
  options.keep = std::max<std::uint32_t>(1, hello.disk_keep);
  options.check_budget = [](std::uint64_t bytes) {
    return check_memory_budget(read_memory_budget(), bytes, "copies that wait for the disk");
  };
  disk_ = std::make_unique<DiskTier>(DiskStore(disk_dir_, options_.run_id), std::move(options),
                                     [&io = io_](std::function<void()> job) { asio::post(io, std::move(job)); });
  log_.write("agreed steps go to " + disk_dir_);
}

void NodeAgent::write_to_disk(Label label) {
  if (disk_ == nullptr || label.step % disk_every_ != 0) return;
  std::vector<DiskSource> sources;
  for (const std::string& owner : protocol_.owners()) {
    for (const OwnCopy& copy : protocol_.own_copies(owner)) {
      const HeldSlot* const held = slots_.find(owner, copy.slot);
      if (copy.label != label || held == nullptr || !held->captured) continue;
      sources.push_back({owner, held->captured->topology, held->memory, held->captured->content_hash});
    }
  }
  disk_->write(
      label, std::move(sources), [] {},
      [this, label](const Result<void>& written) {
        if (!written) log_.write("step " + std::to_string(label.step) + " is not on disk: " + written.error().message);
      });
}

void NodeAgent::with_disk_listing(std::function<void()> then) {
  if (disk_ == nullptr) {
    then();
    return;
  }
  // Whoever comes first, listing or deadline.
  const auto waiting = std::make_shared<std::function<void()>>(std::move(then));
  const auto go_on = [waiting] {
    if (auto call = std::exchange(*waiting, nullptr)) call();
  };
  const auto deadline = std::make_shared<asio::steady_timer>(io_, kListWithin);
  deadline->async_wait([this, deadline, go_on](asio::error_code cancelled) {
    if (cancelled) return;
    log_.write("the disk has not answered in time: it is left out");
    go_on();
  });
  disk_->list([this, deadline, go_on](Result<DiskListing> listed) {
    deadline->cancel();
    if (listed) {
      disk_listing_ = std::move(*listed);
    } else {
      log_.write(listed.error().message);
    }
    go_on();
  });
}

std::uint32_t NodeAgent::newest_disk_incarnation() const {
  std::uint32_t newest = 0;
  for (const DiskManifest& step : disk_listing_.steps) newest = std::max(newest, step.label.incarnation);
  return newest;
}

void NodeAgent::add_disk_copies(const std::string& owner, am::Listing& listing) const {
  for (const DiskManifest& step : disk_listing_.steps) {
    for (const DiskShard& shard : step.shards) {
      if (!owner.empty() && shard.owner != owner) continue;
      // As its manifest says: its bytes are checked when they are loaded.
      listing.copies.push_back({shard.owner, step.label, am::Tier::kDisk, shard.content_bytes, shard.content_hash,
                                shard.topology, true, false, ""});
    }
  }
}

void NodeAgent::fetch_from_disk(const Sender& sender, const am::Fetch& fetch) {
  if (disk_ == nullptr) {
    reply(sender, Error{"no disk tier is on: give disk_dir"});
    return;
  }
  if (trainer_of(sender) != nullptr && protocol_.pinned() != fetch.label) {
    reply(sender, Error{"only a step that is pinned is fetched"});
    return;
  }
  sender->pause();
  disk_->load(fetch.owner, fetch.label, [this, sender](Result<std::shared_ptr<SlotMemory>> loaded) {
    reply_with_copy(sender, loaded);
    sender->resume();
  });
}

void NodeAgent::reply_with_copy(const Sender& sender, const Result<std::shared_ptr<SlotMemory>>& loaded) {
  if (!loaded) {
    reply(sender, loaded.error());
    return;
  }
  const std::optional<SlotContent> content = (*loaded)->read_header();
  const Trainer* const trainer = trainer_of(sender);
  if (content && trainer != nullptr && content->topology != trainer->hello.topology) {
    reply(sender, Error{"the copy on disk is of another job's shape: it has '" + content->topology +
                        "', this trainer '" + trainer->hello.topology + "'"});
    return;
  }
  auto descriptor = (*loaded)->open_for_reading();
  if (!content || !descriptor) {
    reply(sender, descriptor ? Error{"the copy on disk has no header"} : std::move(descriptor).error());
    return;
  }
  Descriptors descriptors;
  descriptors.push_back(std::move(*descriptor));
  sender->send(am::Fetched{(*loaded)->content_bytes()}, std::move(descriptors));
}

}  // namespace smon_rt
