#pragma once

#include <asio/io_context.hpp>
#include <asio/steady_timer.hpp>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/agent_lock.h"
#include "agent/agent_log.h"
#include "agent/connection.h"
#include "agent/disk_tier.h"
#include "agent/memory_budget.h"
#include "agent/node_protocol.h"
#include "agent/slot_store.h"
#include "agent/trainer.h"
#include "agent/tried_file.h"
#include "agent/worker_pool.h"
#include "checkpoint/agent_folder.h"
#include "checkpoint/agent_messages.h"

namespace smon_rt {

struct NodeAgentOptions {
  std::string run_id;
  std::uint32_t ttl_s = 600;  // without a living trainer, until one says another
  std::string version;
};

/// The agent of one node and run: takes messages, asks NodeProtocol what they mean, and does what that says with
/// memory, sockets and files. Work that takes time (taking memory, hashing) is done by threads, which never see its
/// state.
///
/// Threading: the thread of the io_context, but for workers' jobs.
/// Errors: a peer's mistake is answered by Refused; nothing that a peer sends ends the agent.
class NodeAgent final : public Connection::Handler {
 public:
  /// All outlive it. on_end: the job is over, or was not seen for ttl_s.
  NodeAgent(asio::io_context& io, NodeAgentOptions options, const AgentFolder& folder, AgentLog& log, AgentLock& lock,
            std::function<void(const std::string&)> on_end);

  void add(Peer peer);

  void received(const std::shared_ptr<Connection>& connection, Packet packet) override;
  void closed(const std::shared_ptr<Connection>& connection) override;

 private:
  using Sender = std::shared_ptr<Connection>;
  using Descriptors = std::vector<OwnedDescriptor>;

  /// A capture, or a copy that is read again, whose bytes a worker hashes.
  struct HashJob {
    std::string owner;
    std::uint32_t slot = 0;
    Label label;
    std::shared_ptr<SlotMemory> memory;
  };
  struct PendingListing {
    Sender sender;
    std::string owner;
    bool waits_for_fence = false;
    bool has_disk = false;  // has listed, or not in time
  };

  // node_agent.cc
  void handle(const Sender& sender, const agent_messages::Hello& hello);
  void handle(const Sender& sender, const agent_messages::Began& began);
  void handle(const Sender& sender, const agent_messages::Copied& copied);
  void handle(const Sender& sender, const agent_messages::Skipped& skipped);
  void handle(const Sender& sender, const agent_messages::Bye& bye);
  Result<void> check_hello(const Sender& sender, const agent_messages::Hello& hello) const;
  void welcome(const Sender& sender, bool is_new);
  void attach(const Sender& sender, const agent_messages::Hello& hello);
  void trainer_ended(const std::string& owner);
  void hash_capture(HashJob job);
  void finish_capture(const HashJob& job, const std::optional<CapturedCopy>& captured);
  void advance();
  void carry_out(const PromiseMade& made);
  void carry_out(const StepDead& dead);
  void carry_out(const SlotEnded& ended);
  void carry_out(const StepAgreed& agreed);
  void carry_out(const StateTried& tried);
  Trainer* trainer_of(const Sender& sender);

  // agent_memory.cc
  void handle(const Sender& sender, const agent_messages::Reserve& reserve);
  void finish_reserve(const Sender& sender, const agent_messages::Reserve& reserve,
                      std::vector<std::shared_ptr<SlotMemory>> fresh);
  void reply_with_slots(const Sender& sender, const std::vector<std::uint32_t>& slots);
  void adopt(const Sender& sender, const agent_messages::Adopt& adopt, Descriptors descriptors);
  void finish_adopt(const Sender& sender, const agent_messages::Adopt& adopt,
                    const std::vector<std::shared_ptr<SlotMemory>>& memories,
                    const std::vector<std::optional<CapturedCopy>>& copies);

  // agent_recovery.cc
  void handle(const Sender& sender, const agent_messages::Fence& fence);
  void handle(const Sender& sender, const agent_messages::List& list);
  void handle(const Sender& sender, const agent_messages::Pin& pin);
  void handle(const Sender& sender, const agent_messages::Fetch& fetch);
  void handle(const Sender& sender, const agent_messages::GoOn& go_on);
  void handle(const Sender& sender, const agent_messages::Reject& reject);
  void handle(const Sender& sender, const agent_messages::VerifyRequest& verify);
  void add_listing(const Sender& sender, const std::string& owner, bool waits_for_fence);
  void hash_all_again();
  void finish_check(const HashJob& job, bool is_intact);
  void answer_listings();
  agent_messages::Listing listing(const std::string& owner) const;
  void fetch_from_memory(const Sender& sender, const agent_messages::Fetch& fetch);

  // agent_disk.cc
  void open_disk(const agent_messages::Hello& hello);
  void write_to_disk(Label label);
  /// Refreshes disk_listing_ first, if the disk answers in time.
  void with_disk_listing(std::function<void()> then);
  std::uint32_t newest_disk_incarnation() const;
  void add_disk_copies(const std::string& owner, agent_messages::Listing& listing) const;
  void fetch_from_disk(const Sender& sender, const agent_messages::Fetch& fetch);
  void reply_with_copy(const Sender& sender, const Result<std::shared_ptr<SlotMemory>>& loaded);

  // agent_status.cc
  void handle(const Sender& sender, const agent_messages::StatusRequest& request);
  agent_messages::RankStatus rank_status(const std::string& owner) const;
  void tell_others();
  void watch_ttl();

  void reply(const Sender& sender, const Result<void>& result);

  asio::io_context& io_;
  NodeAgentOptions options_;
  const AgentFolder& folder_;
  AgentLog& log_;
  AgentLock& lock_;
  std::function<void(const std::string&)> on_end_;
  TriedFile tried_file_;
  asio::steady_timer timer_;

  NodeProtocol protocol_;
  mutable SlotStore slots_;
  std::map<std::string, Trainer> trainers_;
  std::vector<PendingListing> listings_;
  std::size_t running_hashes_ = 0;
  std::uint64_t reserving_bytes_ = 0;
  std::int64_t idle_since_s_ = 0;
  std::uint64_t hashed_bytes_ = 0;
  std::uint64_t hash_ns_ = 0;
  std::uint64_t budget_bytes_ = 0;

  std::unique_ptr<DiskTier> disk_;
  std::string disk_dir_;
  std::uint64_t disk_every_ = 1;
  DiskListing disk_listing_;

  // Last: their threads end before what their jobs use.
  WorkerPool capture_workers_;
  WorkerPool recovery_workers_;
};

}  // namespace smon_rt
