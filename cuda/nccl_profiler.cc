#include "cuda/nccl_profiler.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>

#include "cuda/nccl_versions.h"
#include "cuda/nccl_words.h"

namespace smon_rt::nccl {

namespace {

constexpr std::uint32_t kOfVersion4 = 0xff;
constexpr int kLatestVersion = 6;

CommHandle to_handle(const void* pointer) {
  return static_cast<CommHandle>(reinterpret_cast<std::uintptr_t>(pointer));
}

void* to_pointer(CommHandle handle) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(handle));
}

template <typename Coll>
CommOpFacts facts_of_coll(const Coll& coll, bool asks_kernels) {
  CommOpFacts facts;
  facts.asks_kernels = asks_kernels;
  facts.function = function_of(coll.func);
  facts.datatype = datatype_of(coll.datatype);
  facts.algorithm = algorithm_of(coll.algo);
  facts.protocol = protocol_of(coll.proto);
  facts.channel_count = coll.nChannels;
  facts.peer = coll.root;
  facts.payload_bytes = coll.count * bytes_of(facts.datatype);
  facts.library_seq = coll.seqNumber;
  return facts;
}

template <typename P2p>
CommOpFacts facts_of_p2p(const P2p& p2p, bool asks_kernels) {
  CommOpFacts facts;
  facts.asks_kernels = asks_kernels;
  facts.function = function_of(p2p.func);
  facts.datatype = datatype_of(p2p.datatype);
  facts.channel_count = p2p.nChannels;
  facts.peer = p2p.peer;
  facts.payload_bytes = p2p.count * bytes_of(facts.datatype);
  return facts;
}

/// kIdle: none of a step's states.
ChannelState channel_state_of(EventState state) {
  switch (state) {
    case EventState::kStepSendGpuWait:
      return ChannelState::kSendGpuWait;
    case EventState::kStepSendPeerWait:
      return ChannelState::kSendPeerWait;
    case EventState::kStepSendWait:
      return ChannelState::kSendWait;
    case EventState::kStepRecvWait:
      return ChannelState::kRecvWait;
    case EventState::kStepRecvFlushWait:
      return ChannelState::kRecvFlushWait;
    case EventState::kStepRecvGpuWait:
      return ChannelState::kRecvGpuWait;
    default:
      return ChannelState::kIdle;
  }
}

}  // namespace

std::uint32_t mask_of(Depth depth, bool has_network, int version) {
  if (!depth.is_recording) return 0;
  std::uint32_t mask = kCollApiEvent | kP2pApiEvent | kCollEvent | kP2pEvent;
  // A hung op has counters only if they were on when it was enqueued. Without a network there is nothing to count.
  if (has_network) mask |= kProxyOpEvent | kProxyStepEvent;
  if (depth.with_kernels) mask |= kKernelChEvent;
  return version == 4 ? mask & kOfVersion4 : mask;
}

void* Profiler::open(int version, std::uint64_t comm_id, int* mask, int node_count, const int* others) noexcept {
  if (mask != nullptr) __atomic_store_n(mask, 0, __ATOMIC_RELAXED);
  if (mask == nullptr || !tracker_.is_ours()) return to_pointer(tracker_.inert_handle());
  const bool has_network = node_count > 1;
  Mask* known = take(mask);
  // More libraries than anyone has: what one of them does is not recorded.
  if (known == nullptr) return to_pointer(tracker_.inert_handle());
  const CommHandle communicator = tracker_.open_communicator(comm_id, has_network);
  if (communicator == 0) {
    known->communicators.fetch_sub(1, std::memory_order_relaxed);
    return to_pointer(tracker_.inert_handle());
  }
  mask_of_communicator_[comm_handle::index_of(communicator)].store(static_cast<std::uint8_t>(known - masks_.data()),
                                                                   std::memory_order_relaxed);
  if (has_network) networks_.fetch_add(1, std::memory_order_relaxed);
  known->version.store(version, std::memory_order_relaxed);
  // Where they do without this communicator, they may have another one.
  if (others != nullptr) known->others.store(others, std::memory_order_relaxed);
  if (wants_kernels()) look_at_version(*known);
  refresh();
  return to_pointer(communicator);
}

void* Profiler::inert_context() const noexcept {
  return to_pointer(tracker_.inert_handle());
}

bool Profiler::asks_for(std::uint64_t type) const noexcept {
  const Depth depth{.is_recording = true, .with_kernels = true};
  return (mask_of(depth, networks_.load(std::memory_order_relaxed) > 0, kLatestVersion) & type) != 0;
}

Profiler::Mask* Profiler::take(int* address) noexcept {
  for (Mask& mask : masks_) {
    std::int32_t count = mask.communicators.load(std::memory_order_acquire);
    while (count > 0 && mask.address.load(std::memory_order_relaxed) == address) {
      if (mask.communicators.compare_exchange_weak(count, count + 1, std::memory_order_acq_rel)) return &mask;
    }
  }
  for (Mask& mask : masks_) {
    std::int32_t count = 0;
    if (!mask.communicators.compare_exchange_strong(count, Mask::kBeingTaken, std::memory_order_acq_rel)) continue;
    mask.address.store(address, std::memory_order_relaxed);
    mask.others.store(nullptr, std::memory_order_relaxed);
    mask.may_time_kernels.store(false, std::memory_order_relaxed);
    mask.nccl_version.store(0, std::memory_order_relaxed);
    mask.communicators.store(1, std::memory_order_release);  // pairs with the acquire above, and in apply()
    return &mask;
  }
  return nullptr;
}

void Profiler::close(Recorder* recorder, void* context) noexcept {
  bool had_network = false;
  const CommHandle communicator = to_handle(context);
  if (!tracker_.is_ours() || communicator == tracker_.inert_handle()) return;
  const std::uint8_t slot =
      mask_of_communicator_[comm_handle::index_of(communicator) % mask_of_communicator_.size()].load(
          std::memory_order_relaxed);
  if (!tracker_.close_communicator(recorder, communicator, &had_network)) return;
  masks_[slot].communicators.fetch_sub(1, std::memory_order_relaxed);
  if (had_network) networks_.fetch_sub(1, std::memory_order_relaxed);
}

void Profiler::apply(Mask& mask) noexcept {
  // A library without communicators may be gone.
  if (mask.communicators.load(std::memory_order_acquire) <= 0) return;
  int* address = mask.address.load(std::memory_order_relaxed);
  const Depth depth{.is_recording = is_recording_.load(std::memory_order_relaxed),
                    .with_kernels = is_asking_kernels_.load(std::memory_order_relaxed) &&
                                    mask.may_time_kernels.load(std::memory_order_relaxed)};
  std::uint32_t wanted =
      mask_of(depth, networks_.load(std::memory_order_relaxed) > 0, mask.version.load(std::memory_order_relaxed));
  if (const int* others = mask.others.load(std::memory_order_relaxed)) {
    wanted |= static_cast<std::uint32_t>(__atomic_load_n(others, __ATOMIC_RELAXED));
  }
  __atomic_store_n(address, static_cast<int>(wanted), __ATOMIC_SEQ_CST);
}

std::uint32_t Profiler::refresh() noexcept {
  if (!tracker_.is_ours()) return 0;
  // One thread at a time writes masks. Who finds another one at it leaves it to that one, which looks again after each
  // change: all in one order, so that it sees the change, or has gone by then.
  const std::uint32_t change = changes_.fetch_add(1, std::memory_order_seq_cst) + 1;
  for (std::uint32_t seen = change; !is_refreshing_.exchange(true, std::memory_order_seq_cst);) {
    do {
      seen = changes_.load(std::memory_order_seq_cst);
      is_asking_kernels_.store(kernel_times_.is_asked(), std::memory_order_seq_cst);
      for (Mask& mask : masks_) apply(mask);
      applied_.store(seen, std::memory_order_seq_cst);
    } while (changes_.load(std::memory_order_seq_cst) != seen);
    is_refreshing_.store(false, std::memory_order_seq_cst);
    if (changes_.load(std::memory_order_seq_cst) == seen) break;
  }
  return change;
}

void Profiler::refresh_now() noexcept {
  constexpr std::chrono::milliseconds kLongest{100};
  const std::uint32_t change = refresh();
  const auto is_applied = [&] { return static_cast<std::int32_t>(applied_.load() - change) >= 0; };
  if (change == 0 || is_applied()) return;
  // Another thread is at it, and may have lost the processor.
  const auto deadline = std::chrono::steady_clock::now() + kLongest;
  while (!is_applied() && std::chrono::steady_clock::now() < deadline) ::sched_yield();
}

void Profiler::set_recording(bool is_recording) noexcept {
  is_recording_.store(is_recording, std::memory_order_relaxed);
  if (!is_recording) kernel_times_.step_ended();
  refresh();
}

void Profiler::want_kernels(bool is_wanted) noexcept {
  kernel_times_.want(is_wanted);
  if (!is_wanted || !tracker_.is_ours()) return;
  for (Mask& mask : masks_) look_at_version(mask);
}

void Profiler::look_at_version(Mask& mask) noexcept {
  if (mask.communicators.load(std::memory_order_acquire) <= 0) return;
  try {
    const int version = version_at(mask.address.load(std::memory_order_relaxed));
    mask.nccl_version.store(version, std::memory_order_relaxed);
    mask.may_time_kernels.store(nccl::kernel_times_refusal(version).empty(), std::memory_order_relaxed);
  } catch (...) {  // no memory
  }
}

void Profiler::step_begun(bool is_sampled, bool is_warmup) noexcept {
  kernel_times_.step_begun(is_sampled, is_warmup, tracker_.kernel_ops());
  refresh();
}

void Profiler::step_ended() noexcept {
  kernel_times_.step_ended();
  refresh();
}

std::string Profiler::kernel_times_refusal() const {
  if (!wants_kernels()) return kNotAskedFor;
  if (kernel_times_.is_spoilt()) return "an operation was captured into a graph by who does not say so";
  bool has_library = false;
  std::string reason;
  for (const Mask& mask : masks_) {
    if (mask.communicators.load(std::memory_order_acquire) <= 0) continue;
    has_library = true;
    reason = nccl::kernel_times_refusal(mask.nccl_version.load(std::memory_order_relaxed));
    if (!reason.empty()) continue;
    // One of two libraries may be asked.
    if (tracker_.kernel_ops() != 0) return "";
    return kernel_times_.is_capturing() ? "a graph is being captured"
                                        : "no step of the warm-up had an operation of NCCL";
  }
  return has_library ? reason : "NCCL has no communicator";
}

bool Profiler::asks_kernels(CommHandle communicator) const noexcept {
  if (!is_asking_kernels_.load(std::memory_order_relaxed)) [[likely]]
    return false;
  const std::size_t index = comm_handle::index_of(communicator) % mask_of_communicator_.size();
  const Mask& mask = masks_[mask_of_communicator_[index].load(std::memory_order_relaxed)];
  return mask.may_time_kernels.load(std::memory_order_relaxed);
}

template <typename Call>
void Profiler::note_capture(const Call& call) noexcept {
  if (!call.graphCaptured || !is_asking_kernels_.load(std::memory_order_relaxed)) [[likely]]
    return;
  kernel_times_.spoil();
  refresh();
}

template <typename Event>
void* Profiler::start(Recorder& recorder, void* context, const Event& event) noexcept {
  const CommHandle communicator = to_handle(context);
  const CommHandle parent = to_handle(event.parentObj);
  switch (static_cast<std::uint64_t>(event.type)) {
    case kCollEvent:
      // In version 4 the parent is the group of kernels, in which nothing is of ours.
      return to_pointer(tracker_.begin_op(recorder, communicator, Event::kVersion == 4 ? 0 : parent,
                                          facts_of_coll(event.coll, asks_kernels(communicator))));
    case kP2pEvent:
      return to_pointer(tracker_.begin_op(recorder, communicator, Event::kVersion == 4 ? 0 : parent,
                                          facts_of_p2p(event.p2p, asks_kernels(communicator))));
    case kProxyOpEvent: {
      // With PXN the op is another process's, and so is its handle.
      const bool is_own = event.proxyOp.pid == tracker_.pid();
      return to_pointer(tracker_.begin_transfer(recorder, communicator, is_own ? parent : 0, event.proxyOp.channelId,
                                                event.proxyOp.isSend != 0, event.proxyOp.peer));
    }
    case kProxyStepEvent:
      return to_pointer(tracker_.begin_step(parent, static_cast<std::uint32_t>(event.proxyStep.step)));
    case kKernelChEvent:
      return to_pointer(
          tracker_.begin_kernel(recorder, communicator, parent, event.kernelCh.channelId, event.kernelCh.pTimer));
    default:
      break;
  }
  if constexpr (Event::kVersion > 4) {
    switch (event.type) {
      case kGroupApiEvent:
        return to_pointer(tracker_.begin_group());
      case kCollApiEvent:
        note_capture(event.collApi);
        return to_pointer(tracker_.begin_call(recorder, communicator, parent, event.collApi.graphCaptured));
      case kP2pApiEvent:
        note_capture(event.p2pApi);
        return to_pointer(tracker_.begin_call(recorder, communicator, parent, event.p2pApi.graphCaptured));
      default:
        break;
    }
  }
  return nullptr;
}

template void* Profiler::start(Recorder&, void*, const EventV4&) noexcept;
template void* Profiler::start(Recorder&, void*, const EventV5&) noexcept;
template void* Profiler::start(Recorder&, void*, const EventV6&) noexcept;

void Profiler::stop(Recorder& recorder, void* handle) noexcept {
  tracker_.end(recorder, to_handle(handle));
}

void Profiler::record(Recorder& recorder, void* handle, EventState state, const StateArgs* args) noexcept {
  if (handle == nullptr) return;
  if (state == EventState::kKernelChStop) {
    if (args != nullptr) tracker_.kernel_stopped(recorder, to_handle(handle), args->kernelCh.pTimer);
    return;
  }
  const ChannelState entered = channel_state_of(state);
  if (entered == ChannelState::kIdle) return;
  tracker_.enter(recorder, to_handle(handle), entered, args == nullptr ? 0 : args->proxyStep.transSize);
}

}  // namespace smon_rt::nccl
