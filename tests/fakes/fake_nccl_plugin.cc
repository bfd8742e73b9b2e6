// A profiler plug-in of somebody else, of the versions that it is built with.

#include "fakes/fake_nccl_plugin.h"

#include <unistd.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "cuda/nccl_profiler_types.h"

namespace {

using namespace smon_rt::nccl;

constexpr Status kFailure = 3;

/// Behind each of its pointers.
struct Given {
  std::uint64_t type = 0;  // 0: a context
};

struct State {
  std::mutex mutex;
  std::unordered_map<void*, std::unique_ptr<Given>> given;
};
State& state() {
  static auto& made = *new State;
  return made;
}

}  // namespace

extern "C" FakeNcclPlugin fake_nccl_plugin;
FakeNcclPlugin fake_nccl_plugin;

namespace {

Status answer() {
  return fake_nccl_plugin.must_fail ? kFailure : kSuccess;
}

void* give(std::uint64_t type) {
  auto made = std::make_unique<Given>(Given{type});
  void* pointer = made.get();
  state().given[pointer] = std::move(made);
  return pointer;
}

/// Its own of this pointer; counted if there is none.
Given* mine(void* pointer) {
  const auto found = state().given.find(pointer);
  if (found != state().given.end()) return found->second.get();
  ++fake_nccl_plugin.foreign;
  return nullptr;
}

Status init(void** context, int* mask) {
  const std::lock_guard lock(state().mutex);
  ++fake_nccl_plugin.inits;
  fake_nccl_plugin.asked_by_init = mask;
  if (const Status failed = answer(); failed != kSuccess) return failed;
  __atomic_store_n(mask, fake_nccl_plugin.mask, __ATOMIC_RELAXED);
  *context = give(0);
  return kSuccess;
}

/// What an event is part of.
std::uint64_t parent_type_of(std::uint64_t type) {
  switch (type) {
    case kProxyStepEvent:
      return kProxyOpEvent;
    case kProxyOpEvent:
    case kKernelChEvent:
      return kCollEvent;
    case kCollEvent:
      return kCollApiEvent;
    default:
      return 0;
  }
}

void look_at_parent(std::uint64_t type, void* parent, bool is_foreign_pid) {
  if (is_foreign_pid) {
    if (parent != nullptr && !state().given.contains(parent)) ++fake_nccl_plugin.foreign_pid;
    return;
  }
  const std::uint64_t expected = parent_type_of(type);
  if (parent == nullptr) {
    if ((static_cast<std::uint64_t>(fake_nccl_plugin.mask) & expected) != 0) ++fake_nccl_plugin.orphans;
    return;
  }
  const Given* found = mine(parent);
  if (found != nullptr && expected != 0 && found->type != expected) ++fake_nccl_plugin.foreign;
}

template <typename Event>
Status start_event(void* context, void** handle, Event* event) {
  const std::lock_guard lock(state().mutex);
  ++fake_nccl_plugin.starts;
  const auto type = static_cast<std::uint64_t>(event->type);
  fake_nccl_plugin.types |= type;
  if ((static_cast<std::uint64_t>(fake_nccl_plugin.mask) & type) == 0) ++fake_nccl_plugin.unasked;
  (void)mine(context);
  look_at_parent(type, event->parentObj, type == kProxyOpEvent && event->proxyOp.pid != ::getpid());
  if constexpr (Event::kVersion > 4) {
    if (type == kCollEvent && event->coll.parentGroup != nullptr) (void)mine(event->coll.parentGroup);
  }
  if (const Status failed = answer(); failed != kSuccess) return failed;
  *handle = give(type);
  return kSuccess;
}

Status stop_event(void* handle) {
  const std::lock_guard lock(state().mutex);
  ++fake_nccl_plugin.stops;
  (void)mine(handle);
  return answer();
}

Status record_event_state(void* handle, EventState, StateArgs*) {
  const std::lock_guard lock(state().mutex);
  ++fake_nccl_plugin.records;
  (void)mine(handle);
  return answer();
}

Status finalize(void* context) {
  const std::lock_guard lock(state().mutex);
  ++fake_nccl_plugin.finalizes;
  (void)mine(context);
  return answer();
}

Status init_v4(void** context, int* mask, const char*, std::uint64_t, int, int, int, Logger) {
  return init(context, mask);
}
[[maybe_unused]] Status init_after_v4(void** context, std::uint64_t, int* mask, const char*, int, int, int, Logger) {
  return init(context, mask);
}

template <typename Event>
constexpr CallbacksAfterInit<Event> kCallbacks = {&start_event<Event>, &stop_event, &record_event_state, &finalize};

}  // namespace

extern "C" {
extern const PluginV4 ncclProfiler_v4;
const PluginV4 ncclProfiler_v4 = {"fake", &init_v4, kCallbacks<EventV4>};
#ifndef FAKE_NCCL_PLUGIN_IS_OLD
extern const PluginV5 ncclProfiler_v5;
extern const PluginV6 ncclProfiler_v6;
const PluginV5 ncclProfiler_v5 = {"fake", &init_after_v4, kCallbacks<EventV5>};
const PluginV6 ncclProfiler_v6 = {"fake", &init_after_v4, kCallbacks<EventV6>};
#endif
}
