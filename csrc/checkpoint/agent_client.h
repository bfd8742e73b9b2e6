#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/result.h"
#include "checkpoint/agent_link.h"
#include "checkpoint/agent_messages.h"

namespace smon_rt {

struct AgentClientOptions {
  std::string folder;
  std::string program;  // "": none is started
  agent_messages::Hello hello;
  /// Between attempts to reach an agent.
  std::chrono::nanoseconds retry_interval = std::chrono::milliseconds(500);
  /// Of an agent that is started.
  std::chrono::nanoseconds start_limit = std::chrono::seconds(10);
};

/// A trainer's side of the talk with its agent: starts one where there is none, says hello, asks, and comes back when
/// the agent does.
///
/// Threading: pump by one thread, the helper, on which all callbacks run; the rest by any.
class AgentClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;
  using Reply = Result<AgentLink::Packet>;

  struct Request {
    agent_messages::TrainerMessage message;
    std::vector<int> descriptors;
    std::function<void(Reply)> on_reply;  // null: it has no reply
  };

  class Events {
   public:
    virtual ~Events() = default;
    /// What is to be said before all that waits. Called again when an agent was found again.
    virtual std::vector<Request> welcomed(const agent_messages::Welcome& welcome) = 0;
    virtual void promised(const agent_messages::Promise& promise) = 0;
    virtual void dead(const agent_messages::Dead& dead) = 0;
    /// The agent is gone, or never was there.
    virtual void lost(const std::string& why) = 0;
    /// False: not yet, since what the last connection began is still under way.
    virtual bool may_connect() = 0;
  };

  AgentClient(AgentClientOptions options, Events& events);

  bool is_connected() const;
  /// Why not, "" if it is.
  std::string problem() const;
  std::optional<agent_messages::Welcome> last_welcome() const;

  /// Waits for the reply. A request that is refused is an error.
  Reply ask(agent_messages::TrainerMessage message, TimePoint deadline);
  void post(Request request);
  /// Something for the helper to do.
  void wake();
  /// Until connected, refused for good, or the deadline.
  Result<agent_messages::Welcome> wait_for_welcome(TimePoint deadline);

  /// Connects, sends, receives; returns once something came, wake() was called, or the time is over.
  void pump(std::chrono::nanoseconds timeout);
  /// All that is still asked fails.
  void shut(const std::string& why);

  /// In a forked child: the agent's connection is the parent's. Only closes.
  void close_in_child() noexcept;

 private:
  void connect();
  Result<AgentLink> reach_agent();
  void lose(const std::string& why);
  bool flush();
  void receive_all();
  void take(AgentLink::Packet packet);
  void set_problem(std::string problem, bool is_connected);

  const AgentClientOptions options_;
  Events& events_;
  OwnedDescriptor wake_;

  mutable std::mutex mutex_;
  std::deque<Request> queue_;
  std::string problem_ = "not connected yet";
  bool is_connected_ = false;
  bool is_refused_ = false;
  std::optional<agent_messages::Welcome> welcome_;

  // Helper thread.
  std::optional<AgentLink> link_;
  std::atomic<int> link_fd_{-1};  // for close_in_child
  bool is_greeted_ = false;
  std::deque<std::function<void(Reply)>> awaited_;
  TimePoint next_attempt_{};
};

}  // namespace smon_rt
