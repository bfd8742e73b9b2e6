// What NCCL finds when it loads this library as its profiler plug-in (NCCL_PROFILER_PLUGIN): the symbols
// ncclProfiler_v4 to v6. They hand the one profiler of the process, which the Runtime has, to the code in cuda.
//
// Every callback returns success, whatever it is given: NCCL would pass an error on to the job.

#include "api/nccl_exports.h"

#include <atomic>
#include <new>

#include "api/runtime.h"
#include "base/process_state.h"
#include "cuda/nccl_profiler.h"

namespace smon_rt {

namespace {

using nccl::EventState;
using nccl::kSuccess;
using nccl::Profiler;
using nccl::StateArgs;
using nccl::Status;

/// When there is no profiler, for lack of memory or in a copy: not null, and nothing that a handle of ours could be.
void* const kNoContext = reinterpret_cast<void*>(static_cast<std::uintptr_t>(1));

Status init(int version, void** context, std::uint64_t comm_id, int* mask, int node_count) noexcept {
  Profiler* profiler = Runtime::is_copy_for_nccl() ? nullptr : Runtime::make_nccl_profiler();
  if (profiler == nullptr && mask != nullptr) *mask = 0;
  void* const opened = profiler == nullptr ? kNoContext : profiler->open(version, comm_id, mask, node_count);
  if (context != nullptr) *context = opened;
  return kSuccess;
}

template <typename Event>
Status start_event(void* context, void** handle, Event* event) noexcept {
  if (handle == nullptr) return kSuccess;
  *handle = nullptr;
  if (!is_recording() || event == nullptr) return kSuccess;
  Profiler* profiler = Runtime::nccl_profiler();
  Recorder* recorder = Runtime::recorder();
  if (profiler != nullptr && recorder != nullptr) *handle = profiler->start(*recorder, context, *event);
  return kSuccess;
}

/// What had begun may end while recording is paused.
template <typename Function>
Status with_recorder(Function&& function) noexcept {
  if (recording_state() == RecordingState::kOff) return kSuccess;
  Profiler* profiler = Runtime::nccl_profiler();
  Recorder* recorder = Runtime::recorder();
  if (profiler != nullptr && recorder != nullptr) function(*profiler, *recorder);
  return kSuccess;
}

Status stop_event(void* handle) noexcept {
  if (handle == nullptr) return kSuccess;
  return with_recorder([=](Profiler& profiler, Recorder& recorder) { profiler.stop(recorder, handle); });
}

Status record_event_state(void* handle, EventState state, StateArgs* args) noexcept {
  if (handle == nullptr) return kSuccess;
  return with_recorder([=](Profiler& profiler, Recorder& recorder) { profiler.record(recorder, handle, state, args); });
}

Status finalize(void* context) noexcept {
  Profiler* profiler = Runtime::nccl_profiler();
  if (profiler == nullptr || context == nullptr || context == kNoContext) return kSuccess;
  profiler->close(is_recording() ? Runtime::recorder() : nullptr, context);
  return kSuccess;
}

Status init_v4(void** context, int* mask, const char*, std::uint64_t comm_hash, int node_count, int, int,
               nccl::Logger) noexcept {
  return init(4, context, comm_hash, mask, node_count);
}

template <int kVersion>
Status init_after_v4(void** context, std::uint64_t comm_id, int* mask, const char*, int node_count, int, int,
                     nccl::Logger) noexcept {
  return init(kVersion, context, comm_id, mask, node_count);
}

template <typename Event>
constexpr nccl::CallbacksAfterInit<Event> kCallbacks = {&start_event<Event>, &stop_event, &record_event_state,
                                                        &finalize};
constexpr char kName[] = "smon_rt";

}  // namespace

}  // namespace smon_rt

using smon_rt::init_after_v4;
using smon_rt::kCallbacks;
using smon_rt::kName;
using smon_rt::nccl::EventV4;
using smon_rt::nccl::EventV5;
using smon_rt::nccl::EventV6;

extern "C" {

const smon_rt::nccl::PluginV4 ncclProfiler_v4 = {kName, &smon_rt::init_v4, kCallbacks<EventV4>};
const smon_rt::nccl::PluginV5 ncclProfiler_v5 = {kName, &init_after_v4<5>, kCallbacks<EventV5>};
const smon_rt::nccl::PluginV6 ncclProfiler_v6 = {kName, &init_after_v4<6>, kCallbacks<EventV6>};

}  // extern "C"
