#include "fakes/fake_gpu_streams.h"

#include <algorithm>
#include <utility>

namespace smon_rt {

void FakeGpuStreams::launch(Stream stream, std::function<void()> work) {
  add(stream, {.work = std::move(work), .recorded = nullptr, .awaited = nullptr});
}

FakeGpuStreams::Event FakeGpuStreams::record(Stream stream) {
  auto event = std::make_shared<Moment>();
  add(stream, {.work = nullptr, .recorded = event, .awaited = nullptr});
  return event;
}

void FakeGpuStreams::wait(Stream stream, const Event& event) {
  if (event != nullptr) add(stream, {.work = nullptr, .recorded = nullptr, .awaited = event});
}

void FakeGpuStreams::hold(Stream stream) {
  auto hold = std::make_shared<Moment>();
  {
    const std::lock_guard lock(mutex_);
    holds_[stream] = hold;
  }
  wait(stream, hold);
}

void FakeGpuStreams::let_go(Stream stream) {
  const std::lock_guard lock(mutex_);
  const auto hold = holds_.find(stream);
  if (hold == holds_.end()) return;
  *hold->second = {true, now_ns_};
  holds_.erase(hold);
  if (is_automatic_) run_locked();
}

void FakeGpuStreams::add(Stream stream, Item item) {
  const std::lock_guard lock(mutex_);
  streams_[stream].push_back(std::move(item));
  if (is_automatic_) run_locked();
}

bool FakeGpuStreams::step_locked(std::deque<Item>& items) {
  if (items.empty()) return false;
  Item& item = items.front();
  if (item.awaited != nullptr && !item.awaited->has_come) return false;
  if (item.work) item.work();
  if (item.recorded != nullptr) *item.recorded = {true, now_ns_};
  items.pop_front();
  return true;
}

void FakeGpuStreams::run_locked() {
  for (bool has_moved = true; has_moved;) {
    has_moved = false;
    for (auto& [stream, items] : streams_) {
      while (step_locked(items)) has_moved = true;
    }
  }
}

bool FakeGpuStreams::step(Stream stream) {
  const std::lock_guard lock(mutex_);
  return step_locked(streams_[stream]);
}

void FakeGpuStreams::run() {
  const std::lock_guard lock(mutex_);
  run_locked();
}

void FakeGpuStreams::run(Stream stream) {
  const std::lock_guard lock(mutex_);
  while (step_locked(streams_[stream])) {
  }
}

bool FakeGpuStreams::is_idle(Stream stream) const {
  const std::lock_guard lock(mutex_);
  const auto found = streams_.find(stream);
  return found == streams_.end() || found->second.empty();
}

bool FakeGpuStreams::is_idle() const {
  const std::lock_guard lock(mutex_);
  return std::ranges::all_of(streams_, [](const auto& stream) { return stream.second.empty(); });
}

void FakeGpuStreams::set_automatic(bool is_automatic) {
  const std::lock_guard lock(mutex_);
  is_automatic_ = is_automatic;
  if (is_automatic_) run_locked();
}

bool FakeGpuStreams::has_come(const Event& event) const {
  const std::lock_guard lock(mutex_);
  return event != nullptr && event->has_come;
}

std::int64_t FakeGpuStreams::time_ns(const Event& event) const {
  const std::lock_guard lock(mutex_);
  return event != nullptr ? event->time_ns : 0;
}

void FakeGpuStreams::pass_time(std::int64_t duration_ns) {
  const std::lock_guard lock(mutex_);
  now_ns_ += duration_ns;
}

void FakeGpuStreams::reset() {
  const std::lock_guard lock(mutex_);
  streams_.clear();
  holds_.clear();
  now_ns_ = 1;
  is_automatic_ = false;
}

}  // namespace smon_rt
