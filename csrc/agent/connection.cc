#include "agent/connection.h"

#include <asio/post.hpp>

#include <utility>

namespace smon_rt {
namespace {

constexpr std::size_t kMaxQueued = 256;
constexpr int kPacketsAtOnce = 16;  // then others have their turn

}  // namespace

Connection::Connection(asio::io_context& io, Peer peer, Handler& handler)
    : peer_(std::move(peer)), stream_(io, peer_.socket.fd()), handler_(handler) {}

Connection::~Connection() {
  if (stream_.is_open()) stream_.release();  // closed by its owner
}

void Connection::wait_for_packets() {
  if (is_closed_ || is_paused_ || is_waiting_) return;
  is_waiting_ = true;
  stream_.async_wait(asio::posix::stream_descriptor::wait_read, [self = shared_from_this()](asio::error_code failed) {
    self->is_waiting_ = false;
    if (!failed) self->read_packets();
  });
}

void Connection::read_packets() {
  for (int i = 0; i < kPacketsAtOnce && !is_closed_ && !is_paused_; ++i) {
    Packet packet;
    const PacketResult result = receive_packet(peer_.socket.fd(), packet);
    if (result == PacketResult::kWouldBlock) break;
    if (result == PacketResult::kClosed) {
      close();
      return;
    }
    handler_.received(shared_from_this(), std::move(packet));
  }
  wait_for_packets();
}

void Connection::resume() {
  is_paused_ = false;
  wait_for_packets();
}

void Connection::send(const agent_messages::AgentMessage& message, std::vector<OwnedDescriptor> descriptors) {
  if (is_closed_) return;
  Outgoing outgoing{agent_messages::encode(message), std::move(descriptors)};
  if (queue_.empty()) {
    const PacketResult result = try_send(outgoing);
    if (result == PacketResult::kClosed) close();
    if (result != PacketResult::kWouldBlock) return;
  }
  if (queue_.size() >= kMaxQueued) {
    close();
    return;
  }
  queue_.push_back(std::move(outgoing));
  if (queue_.size() == 1) wait_for_room();
}

PacketResult Connection::try_send(const Outgoing& outgoing) {
  std::vector<int> fds;
  for (const OwnedDescriptor& each : outgoing.descriptors) fds.push_back(each.fd());
  return send_packet(peer_.socket.fd(), outgoing.bytes, fds);
}

void Connection::wait_for_room() {
  stream_.async_wait(asio::posix::stream_descriptor::wait_write, [self = shared_from_this()](asio::error_code failed) {
    if (!failed) self->send_queued();
  });
}

void Connection::send_queued() {
  while (!is_closed_ && !queue_.empty()) {
    const PacketResult result = try_send(queue_.front());
    if (result == PacketResult::kWouldBlock) {
      wait_for_room();
      return;
    }
    if (result == PacketResult::kClosed) {
      close();
      return;
    }
    queue_.pop_front();
  }
}

void Connection::close() {
  if (is_closed_) return;
  is_closed_ = true;
  stream_.release();  // ends its waits
  peer_.socket.close();
  queue_.clear();
  // Not from within a call of the handler's own.
  asio::post(stream_.get_executor(), [self = shared_from_this()] { self->handler_.closed(self); });
}

}  // namespace smon_rt
