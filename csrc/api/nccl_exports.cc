// What NCCL finds when it loads this library as its profiler plug-in (NCCL_PROFILER_PLUGIN): the symbols
// ncclProfiler_v4 to v6. They hand the one profiler of the process, which the Runtime has, to the code in cuda.
//
// Every callback returns success, whatever it is given: NCCL would pass an error on to the job.

#include "api/nccl_exports.h"

#include <atomic>

#include "api/runtime.h"
#include "base/process_state.h"
#include "cuda/nccl_chain.h"
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

/// Another plug-in behind ours; null: none.
template <typename Event>
constinit std::atomic<nccl::Chain<Event>*> g_chain{nullptr};

template <typename Event>
nccl::Chain<Event>* chain() noexcept {
  return g_chain<Event>.load(std::memory_order_acquire);
}

template <typename Event>
void load_chain(const typename nccl::Chain<Event>::Plugin& ours) noexcept {
  if (chain<Event>() == nullptr) Runtime::load_nccl_chain<Event>(ours, g_chain<Event>);
}

template <typename Event>
Status init(void** context, int* mask, const typename nccl::Chain<Event>::Communicator& communicator) noexcept {
  typename nccl::Chain<Event>::Opened theirs;
  nccl::Chain<Event>* const chained = chain<Event>();
  if (chained != nullptr) theirs = chained->open(mask, communicator);
  Profiler* profiler = Runtime::is_copy_for_nccl() ? nullptr : Runtime::make_nccl_profiler();
  void* opened = kNoContext;
  if (profiler != nullptr) {
    opened = profiler->open(Event::kVersion, communicator.id, mask, communicator.node_count, theirs.wanted);
  }
  const bool is_inert = profiler == nullptr || opened == profiler->inert_context();
  if (is_inert && mask != nullptr) {
    __atomic_store_n(mask, theirs.wanted == nullptr ? 0 : __atomic_load_n(theirs.wanted, __ATOMIC_RELAXED),
                     __ATOMIC_RELAXED);
  }
  if (chained != nullptr) opened = chained->join(opened, theirs);
  if (context != nullptr) *context = opened;
  return kSuccess;
}

template <typename Event>
void* start_ours(void* context, const Event& event) noexcept {
  if (!is_recording()) return nullptr;
  Profiler* profiler = Runtime::nccl_profiler();
  Recorder* recorder = Runtime::recorder();
  return profiler != nullptr && recorder != nullptr ? profiler->start(*recorder, context, event) : nullptr;
}

template <typename Event>
Status start_chained(nccl::Chain<Event>& chained, void* context, void** handle, const Event& event) noexcept {
  if (chained.has_changed(context)) {
    if (Profiler* profiler = Runtime::nccl_profiler()) profiler->refresh();
  }
  Event ours = event;
  nccl::Pair both;
  void* our_context = nullptr;
  both.theirs = chained.start(context, event, ours, &our_context);
  const Profiler* profiler = Runtime::nccl_profiler();
  if (profiler != nullptr && profiler->asks_for(event.type)) both.ours = start_ours(our_context, ours);
  *handle = chained.join(static_cast<std::uint64_t>(event.type), both);
  return kSuccess;
}

template <typename Event>
Status start_event(void* context, void** handle, Event* event) noexcept {
  if (handle == nullptr) return kSuccess;
  *handle = nullptr;
  if (event == nullptr) return kSuccess;
  if (nccl::Chain<Event>* chained = chain<Event>()) return start_chained(*chained, context, handle, *event);
  *handle = start_ours(context, *event);
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

template <typename Event>
Status stop_event(void* handle) noexcept {
  if (nccl::Chain<Event>* chained = chain<Event>()) handle = chained->stop(handle);
  if (handle == nullptr) return kSuccess;
  return with_recorder([=](Profiler& profiler, Recorder& recorder) { profiler.stop(recorder, handle); });
}

template <typename Event>
Status record_event_state(void* handle, EventState state, StateArgs* args) noexcept {
  if (nccl::Chain<Event>* chained = chain<Event>()) handle = chained->record(handle, state, args);
  if (handle == nullptr) return kSuccess;
  return with_recorder([=](Profiler& profiler, Recorder& recorder) { profiler.record(recorder, handle, state, args); });
}

template <typename Event>
Status finalize(void* context) noexcept {
  if (nccl::Chain<Event>* chained = chain<Event>()) context = chained->finalize(context);
  Profiler* profiler = Runtime::nccl_profiler();
  if (profiler == nullptr || context == nullptr || context == kNoContext) return kSuccess;
  profiler->close(is_recording() ? Runtime::recorder() : nullptr, context);
  return kSuccess;
}

Status init_v4(void** context, int* mask, const char* name, std::uint64_t comm_hash, int node_count, int rank_count,
               int rank, nccl::Logger logger) noexcept {
  load_chain<nccl::EventV4>(ncclProfiler_v4);
  return init<nccl::EventV4>(context, mask, {comm_hash, name, node_count, rank_count, rank, logger});
}

const nccl::PluginV5& own(const nccl::EventV5*) {
  return ncclProfiler_v5;
}
const nccl::PluginV6& own(const nccl::EventV6*) {
  return ncclProfiler_v6;
}

template <typename Event>
Status init_after_v4(void** context, std::uint64_t comm_id, int* mask, const char* name, int node_count, int rank_count,
                     int rank, nccl::Logger logger) noexcept {
  load_chain<Event>(own(static_cast<const Event*>(nullptr)));
  return init<Event>(context, mask, {comm_id, name, node_count, rank_count, rank, logger});
}

template <typename Event>
constexpr nccl::CallbacksAfterInit<Event> kCallbacks = {&start_event<Event>, &stop_event<Event>,
                                                        &record_event_state<Event>, &finalize<Event>};
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
const smon_rt::nccl::PluginV5 ncclProfiler_v5 = {kName, &init_after_v4<EventV5>, kCallbacks<EventV5>};
const smon_rt::nccl::PluginV6 ncclProfiler_v6 = {kName, &init_after_v4<EventV6>, kCallbacks<EventV6>};

}  // extern "C"
