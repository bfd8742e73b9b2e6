#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "checkpoint/agent_messages.h"
#include "checkpoint/capture_layout.h"
#include "checkpoint/copy_pool.h"
#include "checkpoint/gpu_copier.h"
#include "checkpoint/slot_mapping.h"

namespace smon_rt {

/// What of a slot's header is the same in all captures of a trainer.
struct SlotIdentity {
  std::string run_id;
  std::string owner;
  std::string topology;
};

/// Where one capture goes.
struct CaptureTarget {
  Label label;
  std::uint32_t slot = 0;
  std::shared_ptr<SlotMapping> mapping;
  std::shared_ptr<const CaptureLayout> layout;
};

/// How it ended. Nothing reads or writes for it any more.
struct CaptureEnd {
  Label label;
  std::uint32_t slot = 0;
  bool is_complete = false;
  agent_messages::SkipCause cause{};  // if not
  std::string text;
  std::uint64_t bytes = 0;
  std::uint64_t copy_ns = 0;
  std::uint64_t blocked_ns = 0;
};

struct CaptureOptions {
  std::size_t copy_threads = 1;
  /// How long the training thread waits for the helper thread to enqueue copies of a GPU: it takes as long as the
  /// helper needs to get a processor, so a second is too long already.
  std::chrono::nanoseconds enqueue_limit = std::chrono::seconds(1);
  /// How long it waits for copies of the host's memory, beside the time that they take at 100 MB/s.
  std::chrono::nanoseconds copy_limit = std::chrono::seconds(5);
};

/// Copies a state into a slot beside the training thread, one capture at a time:
///
///     begin           training   volatile host ranges are copied, those of the GPU staged; the pool starts
///     serve           helper     enqueues the GPU's copies, and looks whether they are done
///     before_update   training   waits for the host's copies; makes the stream wait for the GPU's, if they are
///     enqueued
///
/// Who does the last part ends the capture: the slot's generation becomes even and on_end is called, by any of these
/// threads or one of the pool. A capture that is cancelled ends so too, with an odd generation, once nothing of it is
/// running any more: only then may the slot be used again.
///
/// Threading: as said. Cost: begin touches each range once; before_update is one load where nothing is under way.
class Capture {
 public:
  Capture(GpuCopier& copier, SlotIdentity identity, const CaptureOptions& options,
          std::function<void(CaptureEnd)> on_end, std::function<void()> wake_helper);

  // Any thread.
  bool is_under_way() const noexcept { return is_under_way_.load(std::memory_order_acquire); }
  std::uint64_t gpu_wait_ns() const noexcept { return gpu_wait_ns_.load(std::memory_order_relaxed); }

  // Training thread.
  /// An error: nothing is under way, and on_end is not called. Empty addresses: those of the layout.
  Result<void> begin(CaptureTarget target, std::span<const std::uint64_t> addresses, std::uint64_t stream);
  void before_update(std::uint64_t stream);
  /// False: still under way. Helps with what the host has to copy.
  bool wait_until_ended();

  // Helper thread.
  /// True: look again soon.
  bool serve();
  void cancel(agent_messages::SkipCause cause, const std::string& text);

 private:
  enum class GpuPart : std::uint32_t { kNone, kBegun, kEnqueued, kCancelled };

  void open_slot();
  void copy_volatile(std::span<const std::uint64_t> addresses);
  Result<void> begin_gpu(std::span<const std::uint64_t> addresses, std::uint64_t stream);
  std::vector<GpuCopyRange> gpu_ranges(const std::vector<CaptureLayout::Part>& parts,
                                       std::span<const std::uint64_t> addresses) const;
  void wait_for_host();
  bool is_enqueued_in_time();
  void mark_cancelled(agent_messages::SkipCause cause, std::string text);
  void end_part();
  void end();

  GpuCopier& copier_;
  const SlotIdentity identity_;
  const CaptureOptions options_;
  const std::function<void(CaptureEnd)> on_end_;
  const std::function<void()> wake_helper_;

  // Of the capture under way: written by begin before is_under_way_ (release).
  CaptureTarget target_;
  std::vector<HostCopyRange> host_ranges_;
  std::vector<GpuCopyRange> gpu_stable_;
  std::uint64_t generation_ = 0;
  std::int64_t begun_ns_ = 0;

  std::atomic<bool> is_under_way_{false};
  std::atomic<int> parts_left_{0};  // begin itself, the host's copies, the GPU's
  std::atomic<bool> is_host_done_{true};
  std::atomic<GpuPart> gpu_part_{GpuPart::kNone};
  std::atomic<std::int64_t> blocked_since_ns_{0};
  std::atomic<std::uint64_t> blocked_ns_{0};
  std::atomic<std::uint64_t> gpu_wait_ns_{0};
  // The first reason counts; the text is read once all parts have ended.
  std::atomic<bool> is_cancelled_{false};
  agent_messages::SkipCause cause_{};
  std::string text_;

  CopyPool pool_;  // last: its threads use the rest
};

}  // namespace smon_rt
