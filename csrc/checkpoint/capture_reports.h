#pragma once

#include <atomic>
#include <iterator>
#include <utility>
#include <vector>

#include "checkpoint/agent_messages.h"

namespace smon_rt {

/// What the training thread, and threads that copy, have to tell the agent; the helper takes it from here.
///
/// Threading: add by any thread, without a lock; take_all by one.
class CaptureReports {
 public:
  CaptureReports() = default;
  ~CaptureReports() { take_all(); }
  CaptureReports(const CaptureReports&) = delete;
  CaptureReports& operator=(const CaptureReports&) = delete;

  void add(agent_messages::TrainerMessage message) {
    auto* node = new Node{std::move(message), newest_.load(std::memory_order_relaxed)};
    // release: pairs with the acquire in take_all().
    while (!newest_.compare_exchange_weak(node->before, node, std::memory_order_release, std::memory_order_relaxed)) {
    }
  }

  /// In the order in which they were added.
  std::vector<agent_messages::TrainerMessage> take_all() {
    std::vector<agent_messages::TrainerMessage> messages;
    Node* node = newest_.exchange(nullptr, std::memory_order_acquire);
    while (node != nullptr) {
      messages.push_back(std::move(node->message));
      delete std::exchange(node, node->before);
    }
    return {std::make_move_iterator(messages.rbegin()), std::make_move_iterator(messages.rend())};
  }

 private:
  struct Node {
    agent_messages::TrainerMessage message;
    Node* before;
  };
  std::atomic<Node*> newest_{nullptr};
};

}  // namespace smon_rt
