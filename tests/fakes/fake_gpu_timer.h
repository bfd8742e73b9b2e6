#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
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
  void set_current_stream(GpuStream stream) { stream_ = stream; }
  void set_device(GpuContext context, std::int32_t device) { devices_[context] = device; }
  /// The next event is recorded at this device time.
  void set_device_time(std::int64_t time_ns) { now_ns_ = time_ns; }
  /// Everything recorded up to this device time is ready.
  void finish(std::int64_t time_ns) { finished_ns_ = time_ns; }
  std::size_t used_count() const { return events_.size() - count_free(); }
  /// How often an event was recorded, or tried to be.
  std::size_t record_count() const { return record_count_; }

  GpuContext current_context() noexcept override { return context_; }
  GpuStream current_stream(GpuContext) noexcept override { return stream_; }
  CaptureState capture_state(GpuStream stream) noexcept override {
    if (context_ == 0) return CaptureState::kUnknown;
    return std::ranges::find(capturing_, stream) == capturing_.end() ? CaptureState::kNotCapturing
                                                                     : CaptureState::kCapturing;
  }
  EventSlot record(GpuStream stream) noexcept override {
    ++record_count_;
    if (capture_state(stream) != CaptureState::kNotCapturing) return kNoEvent;
    if (std::ranges::find(adopted_, context_) == adopted_.end()) return kNoEvent;
    const auto free = std::ranges::find(events_, GpuContext{0}, &Event::context);
    if (free == events_.end()) return kNoEvent;
    *free = {context_, now_ns_, 1, free->use_count + 1};
    return slot_of(*free);
  }
  bool retain(EventSlot slot) noexcept override {
    if (find(slot) == nullptr) return false;
    ++event_of(slot).owner_count;
    return true;
  }
  Result<void> adopt(GpuContext context) override {
    if (context == 0) return Error{"context 0: there is none to adopt"};
    if (std::ranges::find(adopted_, context) == adopted_.end()) adopted_.push_back(context);
    return {};
  }
  std::int32_t device_of(GpuContext context) noexcept override {
    const auto found = devices_.find(context);
    return found == devices_.end() ? 0 : found->second;
  }
  std::string device_uuid(GpuContext context) override {
    return context == 0 ? "" : "GPU-fake-" + std::to_string(device_of(context));
  }
  GpuContext context_of(EventSlot slot) noexcept override {
    const Event* event = find(slot);
    return event == nullptr ? 0 : event->context;
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
    if (find(slot) == nullptr) return;
    Event& event = event_of(slot);
    if (--event.owner_count == 0) event.context = 0;
  }

 private:
  struct Event {
    GpuContext context = 0;  // 0: free
    std::int64_t time_ns = 0;
    int owner_count = 0;
    std::int64_t use_count = 0;
  };
  // A slot: how often the event was used before, times 2^20, and its number from 1.
  static constexpr std::int64_t kUse = 1 << 20;

  EventSlot slot_of(const Event& event) const { return (event.use_count - 1) * kUse + (&event - events_.data()) + 1; }
  Event& event_of(EventSlot slot) { return events_[static_cast<std::size_t>(slot % kUse - 1)]; }
  const Event* find(EventSlot slot) const {
    if (slot < 1 || slot % kUse == 0 || static_cast<std::size_t>(slot % kUse) > events_.size()) return nullptr;
    const Event& event = events_[static_cast<std::size_t>(slot % kUse - 1)];
    return event.context == 0 || slot_of(event) != slot ? nullptr : &event;
  }
  std::size_t count_free() const {
    return static_cast<std::size_t>(std::ranges::count(events_, GpuContext{0}, &Event::context));
  }

  std::vector<Event> events_;
  std::vector<GpuContext> adopted_;
  std::vector<GpuStream> capturing_;
  std::map<GpuContext, std::int32_t> devices_;
  GpuContext context_ = 0;
  GpuStream stream_ = 0;
  std::size_t record_count_ = 0;
  std::int64_t now_ns_ = 0;
  std::int64_t finished_ns_ = -1;
};

}  // namespace smon_rt
