#include "cuda/nccl_profiler.h"

#include <unistd.h>

#include "cuda/nccl_words.h"

namespace smon_rt::nccl {

namespace {

constexpr std::uint32_t kOfVersion4 = 0xff;

CommHandle to_handle(const void* pointer) {
  return static_cast<CommHandle>(reinterpret_cast<std::uintptr_t>(pointer));
}

void* to_pointer(CommHandle handle) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(handle));
}

template <typename Coll>
CommOpFacts facts_of_coll(const Coll& coll) {
  CommOpFacts facts;
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
CommOpFacts facts_of_p2p(const P2p& p2p) {
  CommOpFacts facts;
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

void* Profiler::open(int version, std::uint64_t comm_id, int* mask, int node_count) noexcept {
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
  apply(*known);
  return to_pointer(communicator);
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
  const std::uint32_t wanted =
      mask_of(depth_.load(std::memory_order_relaxed), networks_.load(std::memory_order_relaxed) > 0,
              mask.version.load(std::memory_order_relaxed));
  __atomic_store_n(address, static_cast<int>(wanted), __ATOMIC_RELAXED);
}

void Profiler::set_depth(Depth depth) noexcept {
  depth_.store(depth, std::memory_order_relaxed);
  if (!tracker_.is_ours()) return;
  for (Mask& mask : masks_) apply(mask);
}

template <typename Event>
void* Profiler::start(Recorder& recorder, void* context, const Event& event) noexcept {
  const CommHandle communicator = to_handle(context);
  const CommHandle parent = to_handle(event.parentObj);
  switch (static_cast<std::uint64_t>(event.type)) {
    case kCollEvent:
      // In version 4 the parent is the group of kernels, in which nothing is of ours.
      return to_pointer(
          tracker_.begin_op(recorder, communicator, Event::kVersion == 4 ? 0 : parent, facts_of_coll(event.coll)));
    case kP2pEvent:
      return to_pointer(
          tracker_.begin_op(recorder, communicator, Event::kVersion == 4 ? 0 : parent, facts_of_p2p(event.p2p)));
    case kProxyOpEvent: {
      // With PXN the op is another process's, and so is its handle.
      const bool is_own = event.proxyOp.pid == tracker_.pid();
      return to_pointer(tracker_.begin_transfer(recorder, communicator, is_own ? parent : 0, event.proxyOp.channelId,
                                                event.proxyOp.isSend != 0, event.proxyOp.peer));
    }
    case kProxyStepEvent:
      return to_pointer(tracker_.begin_step(parent, static_cast<std::uint32_t>(event.proxyStep.step)));
    case kKernelChEvent:
      return to_pointer(tracker_.begin_kernel(communicator, parent, event.kernelCh.channelId, event.kernelCh.pTimer));
    default:
      break;
  }
  if constexpr (Event::kVersion > 4) {
    switch (event.type) {
      case kGroupApiEvent:
        return to_pointer(tracker_.begin_group());
      case kCollApiEvent:
        return to_pointer(tracker_.begin_call(recorder, communicator, parent, event.collApi.graphCaptured));
      case kP2pApiEvent:
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
