#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"

namespace smon_rt {

/// A context or stream of the GPU's driver: its handle, as a number. Compared and handed on, never followed here.
using GpuContext = std::uint64_t;
using GpuStream = std::uint64_t;

/// A recorded event; what a span carries in device_start and device_end until it is resolved. 0: none. Below 2^56.
using EventSlot = std::int64_t;
inline constexpr EventSlot kNoEvent = 0;

/// Whether a stream is being captured into a graph. Events are recorded on kNotCapturing only.
enum class CaptureState : std::uint8_t { kNotCapturing, kCapturing, kUnknown };

/// kFailed: the event was never recorded, was released, or its context is gone. It will not become ready.
enum class EventState : std::uint8_t { kReady, kNotReady, kFailed };

/// Times on a GPU: events recorded in streams, polled and compared later.
///
/// Threading: current_context, current_stream, capture_state, record and retain are called by the threads of the job;
/// adopt, device_uuid, query and elapsed_ns by the drain thread alone; the rest by any.
/// Cost: nothing here waits for a GPU, creates or retains a context, or throws.
/// When full: record gives kNoEvent, and the span has host times only.
///
/// Each implementation runs the suite of tests/contract/gpu_timer_contract.h.
class GpuTimer {
 public:
  virtual ~GpuTimer() = default;

  /// The context current to the calling thread, 0 if none.
  virtual GpuContext current_context() noexcept = 0;

  /// The stream that the calling thread launches into, of this context, which is current to it. 0, the context's
  /// default stream, if nobody says.
  virtual GpuStream current_stream(GpuContext) noexcept { return 0; }

  /// kUnknown for a stream that cannot be asked.
  virtual CaptureState capture_state(GpuStream stream) noexcept = 0;

  /// Records an event in a stream of the current context: kNoEvent while that context has not been adopted, while the
  /// stream is captured, or when no event is free.
  virtual EventSlot record(GpuStream stream) noexcept = 0;

  /// One more owner of an event that is in use, for a boundary that two spans share. False: it is in use no more, or
  /// this timer has one owner an event.
  virtual bool retain(EventSlot) noexcept { return false; }

  /// Makes the events of a context that a producer was seen in. Again for the same one: looks only for frameworks that
  /// were loaded since, whose streams current_stream() then knows.
  virtual Result<void> adopt(GpuContext context) = 0;

  /// The number of an adopted context's device in this process.
  virtual std::int32_t device_of(GpuContext) noexcept { return 0; }

  /// Of an adopted context's device, as nvidia-smi writes it ("GPU-…"); "" where nobody says.
  virtual std::string device_uuid(GpuContext) { return {}; }

  /// Where an event was recorded; 0 for slots that are not in use.
  virtual GpuContext context_of(EventSlot) noexcept { return 0; }

  /// Never waits. kNoEvent and slots that are not in use are kFailed.
  virtual EventState query(EventSlot slot) noexcept = 0;

  /// From one ready event to another of the same context, negative if they are in the other order.
  virtual Result<std::int64_t> elapsed_ns(EventSlot from, EventSlot to) = 0;

  /// Gives an event back, once for record and once for each retain. kNoEvent and slots that are not in use are ignored.
  virtual void release(EventSlot slot) noexcept = 0;
};

/// On a machine, or in a process, without a GPU: no context, no events.
class NullGpuTimer final : public GpuTimer {
 public:
  GpuContext current_context() noexcept override { return 0; }
  CaptureState capture_state(GpuStream) noexcept override { return CaptureState::kUnknown; }
  EventSlot record(GpuStream) noexcept override { return kNoEvent; }
  Result<void> adopt(GpuContext) override { return Error{"this process has no GPU timer: spans have host times only"}; }
  EventState query(EventSlot) noexcept override { return EventState::kFailed; }
  Result<std::int64_t> elapsed_ns(EventSlot, EventSlot) override {
    return Error{"this process has no GPU timer: there are no events to compare"};
  }
  void release(EventSlot) noexcept override {}
};

}  // namespace smon_rt
