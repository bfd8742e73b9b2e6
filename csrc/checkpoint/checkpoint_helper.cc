// The helper thread of a Checkpoint: it talks to the agent, keeps the slots, and serves the capture under way.

#include <utility>

#include "base/log.h"
#include "checkpoint/checkpoint.h"

namespace smon_rt {

using agent_messages::Dead;
using agent_messages::Promise;
using agent_messages::Refused;
using agent_messages::SkipCause;
using agent_messages::Welcome;
using std::chrono::steady_clock;

void Checkpoint::run() {
  constexpr auto kSoon = std::chrono::microseconds(200);
  constexpr auto kIdle = std::chrono::milliseconds(100);
  while (!helper_.is_stop_requested()) {
    const bool is_busy = serve_once();
    client_.pump(is_busy ? std::chrono::nanoseconds(kSoon) : std::chrono::nanoseconds(kIdle));
  }
  serve_once();
  client_.pump({});
  client_.shut("the checkpoint is closed");
}

bool Checkpoint::serve_once() {
  const bool is_busy = capture_.serve();
  send_reports();
  ask_for_room();
  look_for_agreed();
  return is_busy;
}

void Checkpoint::send_reports() {
  auto messages = reports_.take_all();
  if (!client_.is_connected()) return;  // they mean nothing to an agent that comes later
  for (auto& each : messages) client_.post({std::move(each), {}, {}});
}

void Checkpoint::ask_for_room() {
  // Not while something is copied into a slot that may get another mapping. Nothing new begins until there is room.
  if (!client_.is_connected() || capture_.is_under_way()) return;
  std::shared_ptr<const CaptureLayout> layout;
  {
    const std::lock_guard lock(mutex_);
    const bool is_to_retry = room_ == Room::kRefused && steady_clock::now() >= next_reserve_;
    if (room_ != Room::kWanted && !is_to_retry) return;
    room_ = Room::kAsked;
    layout = layout_;
  }
  client_.post({agent_messages::Reserve{layout->epoch, layout->content_bytes},
                {},
                [this, layout](AgentClient::Reply reply) { take_room(layout, std::move(reply)); }});
}

void Checkpoint::take_room(std::shared_ptr<const CaptureLayout> layout, AgentClient::Reply reply) {
  Result<void> added;
  if (!reply) {
    added = std::move(reply).error();
  } else if (const auto* refused = std::get_if<Refused>(&reply->message)) {
    added = Error{refused->reason};
  } else if (const auto* reserved = std::get_if<agent_messages::Reserved>(&reply->message)) {
    added = slots_.add(layout->epoch, layout->content_bytes, reserved->slots, std::move(reply->descriptors),
                       layout->has_gpu());
    first_of_layout_.reset();
  } else {
    added = Error{"checkpoint agent: it answers a reservation with something else"};
  }
  next_reserve_ = steady_clock::now() + options_.reserve_interval;
  const std::lock_guard lock(mutex_);
  if (layout != layout_) return;  // another one is wanted already
  room_ = added ? Room::kThere : Room::kRefused;
  room_refusal_ = added ? "" : added.error().message;
}

void Checkpoint::look_for_agreed() {
  if (is_looking_ || !first_of_layout_ || steady_clock::now() < next_look_ || !client_.is_connected()) return;
  std::uint32_t epoch = 0;
  {
    const std::lock_guard lock(mutex_);
    if (room_ != Room::kThere) return;
    epoch = layout_->epoch;
  }
  if (!slots_.has_older_than(epoch)) return;
  next_look_ = steady_clock::now() + std::chrono::seconds(1);
  is_looking_ = true;
  client_.post({agent_messages::StatusRequest{}, {}, [this, epoch](AgentClient::Reply reply) {
                  is_looking_ = false;
                  if (!reply) return;
                  const auto* status = std::get_if<agent_messages::Status>(&reply->message);
                  if (status == nullptr || !status->agreed || !first_of_layout_) return;
                  if (*status->agreed >= *first_of_layout_) slots_.drop_older_than(epoch);
                }});
}

std::vector<AgentClient::Request> Checkpoint::welcomed(const Welcome& welcome) {
  for (const auto& orphan : welcome.orphans) {
    log(LogLevel::kWarning, "checkpoint: the agent of run " + orphan.run_id + " (pid " + std::to_string(orphan.pid) +
                                ") still holds " + std::to_string(orphan.memory_bytes >> 20) +
                                " MiB on this node, and its job is gone since " + std::to_string(orphan.idle_s) + " s");
  }
  std::vector<AgentClient::Request> first;
  if (!welcome.is_new || slots_.empty()) return first;
  first = slots_.adoptions();
  for (auto& each : first) {
    each.on_reply = [this](AgentClient::Reply reply) {
      if (reply && !std::holds_alternative<Refused>(reply->message)) return;
      // What it does not take is of no use: new room, and what was held is lost.
      slots_.clear();
      const std::lock_guard lock(mutex_);
      if (room_ == Room::kThere) room_ = Room::kWanted;
    };
  }
  if (has_gone_on_.load(std::memory_order_relaxed)) {
    first.push_back(
        {agent_messages::GoOn{incarnation_.load(std::memory_order_relaxed), next_step_.load(std::memory_order_relaxed)},
         {},
         [](AgentClient::Reply) {}});
  }
  return first;
}

void Checkpoint::promised(const Promise& promise) {
  std::shared_ptr<const CaptureLayout> layout;
  {
    const std::lock_guard lock(mutex_);
    layout = layout_;
    status_.promised = promise.label;
  }
  if (promise.label.incarnation != incarnation_.load(std::memory_order_relaxed)) return;
  auto mapping = slots_.find(promise.slot, promise.layout_epoch);
  if (layout == nullptr || promise.layout_epoch != layout->epoch || mapping == nullptr) {
    report_skip(promise.label, SkipCause::kLayout, "");
    return;
  }
  if (!first_of_layout_) first_of_layout_ = promise.label;
  promised_step_ = promise.label.step;
  auto* prepared = new Prepared{{promise.label, promise.slot, std::move(mapping), std::move(layout)}};
  // release: pairs with the acquire in take_promise().
  delete promise_.exchange(prepared, std::memory_order_acq_rel);
}

void Checkpoint::dead(const Dead& dead) {
  note_skip(dead.label, dead.owner, dead.cause, "");
  if (dead.label.incarnation != incarnation_.load(std::memory_order_relaxed)) return;
  dead_step_.store(dead.label.step, std::memory_order_relaxed);
  if (promised_step_ == dead.label.step) delete promise_.exchange(nullptr, std::memory_order_acq_rel);
}

void Checkpoint::lost(const std::string& why) {
  delete promise_.exchange(nullptr, std::memory_order_acq_rel);
  capture_.cancel(SkipCause::kFailed, why);
  is_looking_ = false;
  const std::lock_guard lock(mutex_);
  if (room_ == Room::kAsked) room_ = Room::kWanted;
}

}  // namespace smon_rt
