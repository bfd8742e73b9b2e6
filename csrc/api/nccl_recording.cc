// The Runtime's part in what NCCL tells its profiler plug-in.

#include <new>

#include "api/runtime.h"

namespace smon_rt {

nccl::Profiler* Runtime::make_nccl_profiler() noexcept {
  nccl::Profiler* profiler = g_nccl_profiler.load(std::memory_order_acquire);
  if (profiler != nullptr && profiler->tracker().is_ours()) return profiler;
  nccl::Profiler* made = nullptr;
  try {
    made = new nccl::Profiler;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  // NCCL may be loaded before recording starts, or after.
  made->set_depth({.is_recording = is_recording()});
  // acquire and release: whoever sees the pointer sees the object. What is replaced, in a forked child, is leaked.
  if (g_nccl_profiler.compare_exchange_strong(profiler, made, std::memory_order_acq_rel)) return made;
  delete made;
  return profiler;
}

void Runtime::set_nccl_depth(bool is_recording_now) {
  nccl::Profiler* profiler = nccl_profiler();
  if (profiler != nullptr) profiler->set_depth({.is_recording = is_recording_now});
}

void Runtime::add_nccl_status(smon_status& status) const {
  nccl::Profiler* profiler = nccl_profiler();
  if (profiler == nullptr) return;
  const CommCounts counts = profiler->tracker().counts();
  status.nccl_communicators = counts.communicators;
  status.nccl_ops = counts.ops;
  status.nccl_joined_ops = counts.joined_ops;
  status.nccl_foreign_handles = counts.foreign_handles;
  status.nccl_stale_handles = counts.stale_handles;
  status.nccl_lost_ends = counts.lost_ends;
  status.nccl_rejected_times = counts.rejected_times;
  status.nccl_untracked = counts.untracked;
}

}  // namespace smon_rt
