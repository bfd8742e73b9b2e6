#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "agent/packet_socket.h"
#include "base/owned_descriptor.h"
#include "checkpoint/agent_messages.h"

namespace smon_rt {

/// One trainer's, or tool's, socket. Requests are read one at a time: whoever answers one later pauses it until then,
/// so that answers come in the order of the requests, and what a peer can make the agent keep is bounded.
///
/// Threading: the thread of the io_context.
/// When full: a peer that does not read what it is sent is cut off.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  class Handler {
   public:
    virtual void received(const std::shared_ptr<Connection>& connection, Packet packet) = 0;
    /// Once, also when it was closed from here.
    virtual void closed(const std::shared_ptr<Connection>& connection) = 0;

   protected:
    ~Handler() = default;
  };

  /// The handler outlives the io_context's run.
  Connection(asio::io_context& io, Peer peer, Handler& handler);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void start() { wait_for_packets(); }
  void send(const agent_messages::AgentMessage& message, std::vector<OwnedDescriptor> descriptors = {});
  void refuse(std::string reason) { send(agent_messages::Refused{std::move(reason)}); }

  void pause() { is_paused_ = true; }
  void resume();
  /// Sends what still can be sent at once.
  void close();

  bool is_open() const { return !is_closed_; }
  pid_t peer_pid() const { return peer_.pid; }
  uid_t peer_uid() const { return peer_.uid; }

  /// Whose trainer this is; "": a tool, or one that has yet to say hello.
  std::string owner;

 private:
  struct Outgoing {
    std::string bytes;
    std::vector<OwnedDescriptor> descriptors;
  };

  void wait_for_packets();
  void read_packets();
  PacketResult try_send(const Outgoing& outgoing);
  void wait_for_room();
  void send_queued();

  Peer peer_;
  asio::posix::stream_descriptor stream_;
  Handler& handler_;
  std::deque<Outgoing> queue_;
  bool is_paused_ = false;
  bool is_waiting_ = false;  // for packets
  bool is_closed_ = false;
};

}  // namespace smon_rt
