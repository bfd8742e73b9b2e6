#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda/nccl_kernel_times.h"
#include "cuda/nccl_profiler_types.h"
#include "record/comm_tracker.h"
#include "record/recorder.h"

namespace smon_rt::nccl {

/// What is asked of NCCL. An op's mask is fixed when it is enqueued, so a change holds for later ones only.
struct Depth {
  bool is_recording = false;
  bool with_kernels = false;  // times of kernels by channel: costs bandwidth, so only when asked for, in sampled steps
};

/// The events to ask for at this depth, of an NCCL that speaks this version.
std::uint32_t mask_of(Depth depth, bool has_network, int version);

/// Our side of NCCL's profiler interface: events become calls of a CommTracker. Nothing here calls CUDA, waits, or
/// allocates, and no pointer that NCCL hands over is followed, but for the event itself and the words in it.
///
/// Threading: any thread, several at once. Made once and leaked: callbacks may come at any time until the process ends.
class Profiler {
 public:
  /// The version of a communicator, its mask and its number; returns the context, which is never null. `others`: what
  /// another plug-in asks for, which it may change.
  void* open(int version, std::uint64_t comm_id, int* mask, int node_count, const int* others = nullptr) noexcept;
  void close(Recorder* recorder, void* context) noexcept;

  template <typename Event>
  void* start(Recorder& recorder, void* context, const Event& event) noexcept;
  void stop(Recorder& recorder, void* handle) noexcept;
  void record(Recorder& recorder, void* handle, EventState state, const StateArgs* args) noexcept;

  /// From now on, in every libnccl of this process that has a communicator.
  void set_recording(bool is_recording) noexcept;

  /// Whether the job wants times of kernels, from its next step on.
  void want_kernels(bool is_wanted) noexcept;
  bool wants_kernels() const noexcept { return kernel_times_.is_wanted(); }
  void step_begun(bool is_sampled, bool is_warmup) noexcept;
  void step_ended() noexcept;
  /// A capture has begun or ended, as KernelTimes knows.
  void captures_changed() noexcept { refresh_now(); }
  static constexpr char kNotAskedFor[] = "not asked for: start(nccl_detail=True)";
  /// Why NCCL was not asked for them so far, "" if it was.
  std::string kernel_times_refusal() const;

  /// Asks NCCL for what is wanted now, or has the thread do it that is at it; gives the number of the change.
  std::uint32_t refresh() noexcept;

  /// Of communicators that are not tracked.
  void* inert_context() const noexcept;
  /// Whether this event may be one that is asked for, or was when its op was enqueued.
  bool asks_for(std::uint64_t type) const noexcept;

  CommTracker& tracker() noexcept { return tracker_; }

 private:
  /// The mask of one libnccl: there may be two in a process. Only written while it has a communicator, and so is there.
  struct Mask {
    static constexpr std::int32_t kBeingTaken = -1;
    std::atomic<int*> address{nullptr};
    std::atomic<std::int32_t> communicators{0};
    std::atomic<int> version{0};
    std::atomic<const int*> others{nullptr};
    std::atomic<int> nccl_version{0};
    std::atomic<bool> may_time_kernels{false};
  };
  void look_at_version(Mask& mask) noexcept;
  /// As refresh(), and waits for it, some microseconds most often. For no callback.
  void refresh_now() noexcept;
  /// Whether an op of this communicator is asked when its kernels run.
  bool asks_kernels(CommHandle communicator) const noexcept;
  template <typename Call>
  void note_capture(const Call& call) noexcept;
  /// The one of this address, with one communicator more; nullptr: there are too many.
  Mask* take(int* address) noexcept;
  void apply(Mask& mask) noexcept;

  CommTracker tracker_;
  std::array<Mask, 8> masks_{};
  std::array<std::atomic<std::uint8_t>, CommTracker::kCommunicators> mask_of_communicator_{};
  std::atomic<std::int32_t> networks_{0};
  std::atomic<bool> is_recording_{false};
  KernelTimes kernel_times_;
  std::atomic<bool> is_asking_kernels_{false};
  std::atomic<std::uint32_t> changes_{0};  // of what is wanted
  std::atomic<std::uint32_t> applied_{0};  // the last one that masks have
  std::atomic<bool> is_refreshing_{false};
};

extern template void* Profiler::start(Recorder&, void*, const EventV4&) noexcept;
extern template void* Profiler::start(Recorder&, void*, const EventV5&) noexcept;
extern template void* Profiler::start(Recorder&, void*, const EventV6&) noexcept;

}  // namespace smon_rt::nccl
