#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "record/gpu_timer.h"

namespace smon_rt {

/// A GPU whose time moves when the test says: events are ready once finish() has passed their time.
class FakeGpuTimer final : public GpuTimer {
 public:
  explicit FakeGpuTimer(std::size_t event_count = 64) : events_(event_count) {}

  void set_context(GpuContext context) { context_ = context; }
  void set_capturing(GpuStream stream, bool capturing) {
    std::erase(capturing_, stream);
    if (capturing) capturing_.push_back(stream);
  }
  /// The next event is recorded at this device time.
  void set_device_time(std::int64_t time_ns) { now_ns_ = time_ns; }
  /// Everything recorded up to this device time is ready.
  void finish(std::int64_t time_ns) { finished_ns_ = time_ns; }

  GpuContext current_context() noexcept override { return context_; }
  CaptureState capture_state(GpuStream stream) noexcept override {
    if (context_ == 0) return CaptureState::kUnknown;
    return std::ranges::find(capturing_, stream) == capturing_.end() ? CaptureState::kNotCapturing
                                                                     : CaptureState::kCapturing;
  }
  EventSlot record(GpuStream stream) noexcept override {
    if (capture_state(stream) != CaptureState::kNotCapturing) return kNoEvent;
    if (std::ranges::find(adopted_, context_) == adopted_.end()) return kNoEvent;
    const auto free = std::ranges::find(events_, GpuContext{0}, &Event::context);
    if (free == events_.end()) return kNoEvent;
    *free = {context_, now_ns_};
    return free - events_.begin() + 1;
  }
  Result<void> adopt(GpuContext context) override {
    if (context == 0) return Error{"context 0: there is none to adopt"};
    if (std::ranges::find(adopted_, context) == adopted_.end()) adopted_.push_back(context);
    return {};
  }
  EventState query(EventSlot slot) noexcept override {
    const Event* event = find(slot);
    if (event == nullptr) return EventState::kFailed;
    return event->time_ns <= finished_ns_ ? EventState::kReady : EventState::kNotReady;
  }
  Result<std::int64_t> elapsed_ns(EventSlot from, EventSlot to) override {
    if (query(from) != EventState::kReady || query(to) != EventState::kReady) {
      return Error{"event " + std::to_string(from) + " or " + std::to_string(to) + " is not ready"};
    }
    if (find(from)->context != find(to)->context) return Error{"events of two contexts cannot be compared"};
    return find(to)->time_ns - find(from)->time_ns;
  }
  void release(EventSlot slot) noexcept override {
    if (find(slot) != nullptr) events_[static_cast<std::size_t>(slot - 1)] = {};
  }

 private:
  struct Event {
    GpuContext context = 0;  // 0: free
    std::int64_t time_ns = 0;
  };
  const Event* find(EventSlot slot) const {
    if (slot < 1 || static_cast<std::size_t>(slot) > events_.size()) return nullptr;
    const Event& event = events_[static_cast<std::size_t>(slot - 1)];
    return event.context == 0 ? nullptr : &event;
  }

  std::vector<Event> events_;
  std::vector<GpuContext> adopted_;
  std::vector<GpuStream> capturing_;
  GpuContext context_ = 0;
  std::int64_t now_ns_ = 0;
  std::int64_t finished_ns_ = -1;
};

}  // namespace smon_rt
