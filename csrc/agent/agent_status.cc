// What a NodeAgent says of itself, and when it ends by itself.
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "agent/node_agent.h"

namespace smon_rt {
namespace {

namespace am = agent_messages;

}  // namespace

void NodeAgent::handle(const Sender& sender, const am::StatusRequest&) {
  budget_bytes_ = read_memory_budget().available_bytes;
  am::Status status;
  status.run_id = options_.run_id;
  status.pid = ::getpid();
  status.incarnation = protocol_.incarnation();
  for (const auto& [owner, trainer] : trainers_) {
    status.ranks.push_back(rank_status(owner));
    if (am::encode(status).size() > am::kMaxPacketBytes / 2) {  // as many as a packet has room for
      status.ranks.pop_back();
      break;
    }
  }
  status.memory_bytes = slots_.memory_bytes();
  status.memory_budget_bytes = budget_bytes_;
  status.agreed = protocol_.agreed();
  status.skipped_steps = protocol_.dead_step_count();
  if (const auto dead = protocol_.last_dead()) status.last_skip = am::Dead{dead->label, dead->owner, dead->cause};
  status.hashed_bytes = hashed_bytes_;
  status.hash_ns = hash_ns_;
  if (disk_ != nullptr) {
    const DiskTierStatus disk = disk_->status(DiskTier::Clock::now());
    if (disk.durable != kInitialState) status.durable = disk.durable;
    status.disk_error = disk.error;
    status.written_bytes = disk.written_bytes;
    status.write_ns = disk.write_ns;
  }
  status.is_fenced = protocol_.is_fenced();
  sender->send(status);
}

am::RankStatus NodeAgent::rank_status(const std::string& owner) const {
  const Trainer& trainer = trainers_.at(owner);
  am::RankStatus status;
  status.owner = owner;
  status.rank = trainer.hello.rank;
  status.pid = trainer.process == nullptr ? 0 : trainer.process->pid();
  status.is_connected = trainer.is_connected();
  for (const OwnCopy& copy : protocol_.own_copies(owner)) {  // by label: the newest stays
    if (copy.stage == Stage::kPromised) status.promised = copy.label;
    if (copy.stage == Stage::kCaptured) status.captured = copy.label;
    if (const HeldSlot* const held = slots_.find(owner, copy.slot); held != nullptr) {
      status.content_bytes = held->memory->content_bytes();
    }
  }
  status.copy_ns = trainer.copy_ns;
  status.blocked_ns = trainer.blocked_ns;
  status.captures = trainer.captures;
  status.skips = trainer.skips;
  status.layout_epoch = trainer.layout_epoch;
  return status;
}

void NodeAgent::tell_others() {
  const bool is_job_here = std::ranges::any_of(trainers_, [](const auto& entry) { return entry.second.is_alive(); });
  if (is_job_here) {
    idle_since_s_ = 0;
  } else if (idle_since_s_ == 0) {
    idle_since_s_ = monotonic_s();
  }
  lock_.write({options_.run_id, ::getpid(), slots_.memory_bytes(), idle_since_s_});
}

// Also sees the end of trainers where the kernel has no pidfd.
void NodeAgent::watch_ttl() {
  timer_.expires_after(std::chrono::milliseconds(500));
  timer_.async_wait([this](asio::error_code failed) {
    if (failed) return;
    std::vector<std::string> ended;
    for (const auto& [owner, trainer] : trainers_) {
      if (trainer.process != nullptr && trainer.process->has_ended()) ended.push_back(owner);
    }
    for (const std::string& owner : ended) trainer_ended(owner);
    if (idle_since_s_ != 0 && monotonic_s() - idle_since_s_ >= options_.ttl_s) {
      on_end_("its job was not seen for " + std::to_string(options_.ttl_s) + " s");
      return;
    }
    watch_ttl();
  });
}

}  // namespace smon_rt
