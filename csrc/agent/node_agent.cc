#include "agent/node_agent.h"

#include <asio/post.hpp>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>
#include <variant>

namespace smon_rt {
namespace {

namespace am = agent_messages;

constexpr std::int32_t kMaxWorldSize = 1 << 20;
constexpr std::size_t kMaxNameBytes = 255;  // SlotHeader has that much room for run id and owner
constexpr std::size_t kMaxTopologyBytes = 1023;
constexpr std::uint32_t kMaxEvery = 1U << 30;

std::size_t worker_count() {
  return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 8, 1, 8);
}

/// What a tool may ask.
bool is_for_all(const am::TrainerMessage& message) {
  return std::holds_alternative<am::Hello>(message) || std::holds_alternative<am::List>(message) ||
         std::holds_alternative<am::Fetch>(message) || std::holds_alternative<am::StatusRequest>(message) ||
         std::holds_alternative<am::VerifyRequest>(message);
}

bool has_reply(const am::TrainerMessage& message) {
  return !std::holds_alternative<am::Began>(message) && !std::holds_alternative<am::Copied>(message) &&
         !std::holds_alternative<am::Skipped>(message);
}

/// Hashes a copy that its trainer says is complete; none if it is not what was promised.
std::optional<CapturedCopy> hash_complete(SlotMemory& memory, Label label, const std::string& owner,
                                          const std::string& run_id) {
  const std::optional<SlotContent> content = memory.read_header();
  if (!content || content->label != label || content->owner != owner || content->run_id != run_id) return std::nullopt;
  const std::optional<std::uint64_t> hash = memory.hash_and_store(content->generation);
  if (!hash) return std::nullopt;
  return CapturedCopy{label, content->generation, *hash, content->topology};
}

}  // namespace

NodeAgent::NodeAgent(asio::io_context& io, NodeAgentOptions options, const AgentFolder& folder, AgentLog& log,
                     AgentLock& lock, std::function<void(const std::string&)> on_end)
    : io_(io),
      options_(std::move(options)),
      folder_(folder),
      log_(log),
      lock_(lock),
      on_end_(std::move(on_end)),
      tried_file_(folder.fd()),
      timer_(io),
      protocol_(NodeProtocolOptions{}),
      idle_since_s_(monotonic_s()),
      capture_workers_(worker_count(), WorkerPriority::kBackground),
      recovery_workers_(2 * worker_count(), WorkerPriority::kNormal) {
  for (const TriedMarks::Mark& mark : tried_file_.read()) protocol_.restore_mark(mark.label, mark.reason);
  tell_others();
  watch_ttl();
}

void NodeAgent::add(Peer peer) {
  const auto connection = std::make_shared<Connection>(io_, std::move(peer), *this);
  if (connection->peer_uid() != ::geteuid()) {
    log_.write("refused a connection of user " + std::to_string(connection->peer_uid()));
    connection->refuse("this agent is of user " + std::to_string(::geteuid()) + ": it answers no other");
    connection->close();
    return;
  }
  connection->start();
}

void NodeAgent::received(const Sender& sender, Packet packet) {
  auto message = packet.is_cut ? Result<am::TrainerMessage>(Error{"the packet is longer than 64 KiB, or has too many "
                                                                  "descriptors"})
                               : am::decode_trainer_message(packet.bytes);
  if (!message) {
    log_.write("refused a packet: " + message.error().message);
    sender->refuse(message.error().message);
    return;
  }
  if (!is_for_all(*message) && trainer_of(sender) == nullptr) {
    if (has_reply(*message)) sender->refuse("no trainer of this run is known here: say hello first");
    return;
  }
  std::visit(
      [&](const auto& content) {
        if constexpr (std::is_same_v<std::decay_t<decltype(content)>, am::Adopt>) {
          adopt(sender, content, std::move(packet.descriptors));
        } else {
          handle(sender, content);
        }
      },
      *message);
  advance();
}

void NodeAgent::closed(const Sender& sender) {
  std::erase_if(listings_, [&](const PendingListing& pending) { return pending.sender == sender; });
}

Trainer* NodeAgent::trainer_of(const Sender& sender) {
  const auto found = trainers_.find(sender->owner);
  // One that was replaced is nobody any more.
  return found == trainers_.end() || found->second.connection != sender ? nullptr : &found->second;
}

void NodeAgent::reply(const Sender& sender, const Result<void>& result) {
  if (result) {
    sender->send(am::Done{});
    return;
  }
  log_.write((sender->owner.empty() ? "a tool" : sender->owner) + " is refused: " + result.error().message);
  sender->refuse(result.error().message);
}

// ---- trainers come and go

Result<void> NodeAgent::check_hello(const Sender& sender, const am::Hello& hello) const {
  if (hello.protocol != am::kProtocol) {
    return Error{"the trainer speaks version " + std::to_string(hello.protocol) + " of the protocol, this agent " +
                 std::to_string(am::kProtocol) + ": end agents of an older smon_rt"};
  }
  if (hello.run_id != options_.run_id) {
    return Error{"this agent is of run '" + options_.run_id + "', not of '" + hello.run_id + "'"};
  }
  if (hello.world_size < 1 || hello.world_size > kMaxWorldSize || hello.rank < 0 || hello.rank >= hello.world_size) {
    return Error{"rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world_size) + " is none"};
  }
  if (hello.owner.empty() || hello.owner.size() > kMaxNameBytes || hello.topology.size() > kMaxTopologyBytes) {
    return Error{"the owner needs 1 to 255 bytes, the topology at most 1023"};
  }
  if (hello.every < 1 || hello.every > kMaxEvery) return Error{"every has to be 1 or more"};
  if (hello.own_slots < 2 || hello.own_slots > 3) return Error{"own_slots has to be 2 or 3"};
  if (!sender->owner.empty() && sender->owner != hello.owner) return Error{"one connection is of one rank"};
  return {};
}

void NodeAgent::handle(const Sender& sender, const am::Hello& hello) {
  if (auto checked = check_hello(sender, hello); !checked) {
    reply(sender, checked);
    return;
  }
  const bool is_new = !protocol_.knows(hello.owner);
  attach(sender, hello);
  open_disk(hello);
  sender->pause();
  with_disk_listing([this, sender, is_new] {
    if (trainer_of(sender) != nullptr) welcome(sender, is_new);
    sender->resume();
  });
}

void NodeAgent::welcome(const Sender& sender, bool is_new) {
  // What is on disk may be all that remembers an incarnation.
  std::uint32_t incarnation = std::max(protocol_.incarnation(), newest_disk_incarnation());
  for (const TriedMarks::Mark& mark : protocol_.tried().all()) {
    // An agent that was started anew has heard of no incarnation: labels of marks must not be used again.
    incarnation = std::max(incarnation, mark.label.incarnation);
  }
  trainers_[sender->owner].is_welcomed = true;
  sender->send(am::Welcome{incarnation, ::getpid(), options_.version, is_new, find_orphans(folder_.path())});
  // It has lost those of an earlier connection, and was sent none before its welcome.
  for (const OwnCopy& copy : protocol_.own_copies(sender->owner)) {
    if (copy.stage == Stage::kPromised) {
      carry_out(PromiseMade{sender->owner, copy.label, copy.slot, trainers_[sender->owner].layout_epoch});
    }
  }
  tell_others();
}

void NodeAgent::attach(const Sender& sender, const am::Hello& hello) {
  Trainer& trainer = trainers_[hello.owner];
  const pid_t pid = sender->peer_pid() > 0 ? sender->peer_pid() : hello.pid;
  const bool is_same = trainer.is_alive() && trainer.process->pid() == pid && trainer.hello.attempt == hello.attempt;
  if (trainer.process != nullptr && trainer.process->has_ended()) trainer_ended(hello.owner);
  if (trainer.is_connected() && trainer.connection != sender) trainer.connection->close();
  sender->owner = hello.owner;
  trainer.is_welcomed = false;
  trainer.connection = sender;
  trainer.hello = hello;
  if (hello.agent_ttl_s > 0) options_.ttl_s = hello.agent_ttl_s;
  if (is_same) {
    protocol_.reconnected(hello.owner);
    return;
  }
  log_.write(hello.owner + ": rank " + std::to_string(hello.rank) + " of " + std::to_string(hello.world_size) +
             ", process " + std::to_string(pid) + ", attempt " + hello.attempt);
  trainer.process = std::make_unique<ProcessWatch>(io_, pid, [this, owner = hello.owner] { trainer_ended(owner); });
  const auto world_size = static_cast<std::size_t>(hello.world_size);
  protocol_.attach({hello.owner, world_size, world_size, hello.every, hello.own_slots});
}

void NodeAgent::trainer_ended(const std::string& owner) {
  const auto found = trainers_.find(owner);
  // The word may be late, and of a process that another one has replaced.
  if (found == trainers_.end() || found->second.process == nullptr || !found->second.process->has_ended()) return;
  log_.write(owner + ": process " + std::to_string(found->second.process->pid()) + " has ended");
  found->second.process.reset();
  protocol_.trainer_gone(owner);
  advance();
  tell_others();
}

void NodeAgent::handle(const Sender& sender, const am::Bye&) {
  const bool is_last = protocol_.bye(sender->owner);
  reply(sender, {});
  if (is_last) on_end_("the job is over");
}

// ---- captures

void NodeAgent::handle(const Sender& sender, const am::Began& began) {
  protocol_.began(sender->owner, began.label, began.slot);
}

void NodeAgent::handle(const Sender& sender, const am::Copied& copied) {
  Trainer& trainer = *trainer_of(sender);
  trainer.copy_ns = copied.copy_ns;
  trainer.blocked_ns = copied.blocked_ns;
  const HeldSlot* const held = slots_.find(sender->owner, copied.slot);
  if (!protocol_.copied(sender->owner, copied.label, copied.slot)) return;
  if (held == nullptr) {
    protocol_.damaged(sender->owner, copied.label, copied.slot, am::SkipCause::kFailed);
    return;
  }
  ++trainer.captures;
  hash_capture({sender->owner, copied.slot, copied.label, held->memory});
}

void NodeAgent::hash_capture(HashJob job) {
  ++running_hashes_;
  capture_workers_.add([this, job = std::move(job), run_id = options_.run_id] {
    const auto begin = std::chrono::steady_clock::now();
    auto captured = hash_complete(*job.memory, job.label, job.owner, run_id);
    const auto ns = std::chrono::nanoseconds(std::chrono::steady_clock::now() - begin).count();
    asio::post(io_, [this, job, captured = std::move(captured), ns] {
      hashed_bytes_ += job.memory->content_bytes();
      hash_ns_ += static_cast<std::uint64_t>(ns);
      finish_capture(job, captured);
    });
  });
}

void NodeAgent::finish_capture(const HashJob& job, const std::optional<CapturedCopy>& captured) {
  --running_hashes_;
  HeldSlot* const held = slots_.find(job.owner, job.slot);
  if (held != nullptr && held->memory == job.memory) {
    if (!captured) {
      log_.write(job.owner + ": the copy of step " + std::to_string(job.label.step) + " is not complete: forgotten");
      protocol_.damaged(job.owner, job.label, job.slot, am::SkipCause::kFailed);
    } else if (protocol_.hashed(job.owner, job.label, job.slot)) {
      held->captured = captured;
    }
  }
  advance();
  answer_listings();
}

void NodeAgent::handle(const Sender& sender, const am::Skipped& skipped) {
  ++trainer_of(sender)->skips;
  if (protocol_.skipped(sender->owner, skipped.label, skipped.cause) && !skipped.text.empty()) {
    log_.write(sender->owner + " skipped step " + std::to_string(skipped.label.step) + ": " + skipped.text);
  }
}

// ---- what follows

void NodeAgent::advance() {
  for (const Effect& effect : protocol_.advance()) {
    std::visit([this](const auto& each) { carry_out(each); }, effect);
  }
}

void NodeAgent::carry_out(const PromiseMade& made) {
  const auto found = trainers_.find(made.owner);
  if (found == trainers_.end() || slots_.find(made.owner, made.slot) == nullptr) return;
  if (found->second.is_connected() && found->second.is_welcomed) {
    found->second.connection->send(am::Promise{made.label, made.slot, made.layout_epoch});
  }
}

void NodeAgent::carry_out(const StepDead& dead) {
  for (auto& [owner, trainer] : trainers_) {
    if (trainer.is_connected() && trainer.is_welcomed)
      trainer.connection->send(am::Dead{dead.label, dead.owner, dead.cause});
  }
}

void NodeAgent::carry_out(const SlotEnded& ended) {
  slots_.remove(ended.owner, ended.slot);
  tell_others();
}

void NodeAgent::carry_out(const StepAgreed& agreed) {
  write_to_disk(agreed.label);
}

void NodeAgent::carry_out(const StateTried& tried) {
  log_.write(to_text(tried.label) + " is not used again: " + tried.reason);
  if (auto added = tried_file_.add(tried.label, tried.reason); !added) log_.write(added.error().message);
}

}  // namespace smon_rt
