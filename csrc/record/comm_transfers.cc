// The part of the tracker that is folded: channels, transfers and their steps, kernels.

#include <algorithm>

#include "record/comm_slots.h"
#include "record/comm_tracker.h"

namespace smon_rt {

namespace {

constexpr std::size_t kMaxProbes = 16;

/// One more, by the one thread that moves the channel's data.
void count_alone(std::atomic<std::uint64_t>& counter, std::uint64_t more = 1) noexcept {
  counter.store(counter.load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

/// Whether it is the new least one.
template <typename Value>
bool keep_least(std::atomic<Value>& least, Value value) noexcept {
  Value now = least.load(std::memory_order_relaxed);
  while (now == 0 || value < now) {
    if (least.compare_exchange_weak(now, value, std::memory_order_relaxed)) return true;
  }
  return false;
}

/// Whether it is the new greatest one.
template <typename Value>
bool keep_greatest(std::atomic<Value>& greatest, Value value) noexcept {
  Value now = greatest.load(std::memory_order_relaxed);
  while (value > now) {
    if (greatest.compare_exchange_weak(now, value, std::memory_order_relaxed)) return true;
  }
  return false;
}

void enter_state(ChannelRecord& channel, ChannelState state, std::int64_t now_ticks) noexcept {
  channel.state_ticks.store(now_ticks, std::memory_order_relaxed);
  channel.state.store(state, std::memory_order_relaxed);
}

}  // namespace

ChannelRecord* CommTracker::channel_of(Recorder& recorder, const Communicator& communicator, std::uint32_t channel,
                                       bool is_send) noexcept {
  const auto records = recorder.arena().channels();
  if (records.empty()) return nullptr;
  const std::uint64_t key =
      ChannelRecord::make_key(communicator.number.load(std::memory_order_relaxed), channel, is_send);
  const std::size_t first = (key * 0x9e3779b97f4a7c15) >> 32;
  for (std::size_t probe = 0; probe < kMaxProbes; ++probe) {
    ChannelRecord& record = records[(first + probe) % records.size()];
    std::uint64_t found = record.key.load(std::memory_order_relaxed);
    if (found == key) return &record;
    if (found != 0) continue;
    record.nccl_comm.store(communicator.library_id.load(std::memory_order_relaxed), std::memory_order_relaxed);
    // release: pairs with the acquire of readers of the arena. One thread moves a channel's data, so no other one can
    // claim a second record for it.
    if (record.key.compare_exchange_strong(found, key, std::memory_order_acq_rel)) return &record;
  }
  return nullptr;
}

void CommTracker::free_channels(Recorder& recorder, std::uint32_t communicator) noexcept {
  for (ChannelRecord& record : recorder.arena().channels()) {
    std::uint64_t key = record.key.load(std::memory_order_relaxed);
    if (key >> 16 != ChannelRecord::make_key(communicator, 0, false) >> 16) continue;
    // Who closes a communicator whose transfers hang wants to know where they hung.
    if (record.done.load(std::memory_order_relaxed) != record.begun.load(std::memory_order_relaxed)) continue;
    for (auto* counter : {&record.begun, &record.moved, &record.done, &record.moved_bytes}) {
      counter->store(0, std::memory_order_relaxed);
    }
    record.key.compare_exchange_strong(key, 0, std::memory_order_release);  // pairs with the claim in channel_of()
  }
}

CommHandle CommTracker::begin_transfer(Recorder& recorder, CommHandle handle, CommHandle op_handle,
                                       std::uint32_t channel_number, bool is_send, std::int32_t peer) noexcept {
  const Communicator* communicator = communicator_of(handle);
  if (communicator == nullptr) return 0;
  ChannelRecord* channel = channel_of(recorder, *communicator, channel_number, is_send);
  if (channel == nullptr) {
    count(untracked_);
    return 0;
  }
  channel->peer.store(static_cast<std::int16_t>(std::clamp(peer, -1, 0x7fff)), std::memory_order_relaxed);
  channel->comm_id.store(communicator->comm_id.load(std::memory_order_relaxed), std::memory_order_relaxed);
  if (Op* op = op_handle == 0 ? nullptr : op_of(op_handle)) {
    op->transfers.fetch_add(1, std::memory_order_relaxed);
    keep_least(op->first_transfer_ticks, recorder.clock().ticks());
  } else {
    op_handle = 0;
  }
  std::uint64_t number;
  Transfer& transfer = take(transfers_, kTransfers, next_transfer_, &number);
  transfer.is_send.store(is_send, std::memory_order_relaxed);
  transfer.op.store(op_handle, std::memory_order_relaxed);
  transfer.channel.store(channel, std::memory_order_relaxed);
  for (auto& step : transfer.steps) step.store(0, std::memory_order_relaxed);
  const CommHandle made = comm_handle::make(nonce_, Type::kTransfer, number, kTransfers);
  transfer.ticket.store(comm_handle::ticket_of(made), std::memory_order_release);  // pairs with the acquire in find()
  return made;
}

CommHandle CommTracker::begin_step(CommHandle handle, std::uint32_t step) noexcept {
  if (handle == 0) return 0;
  Transfer* transfer = find(transfers_, kTransfers, handle, Type::kTransfer);
  if (transfer == nullptr) return 0;
  if (!transfer->is_open.load(std::memory_order_relaxed)) {
    count(stale_handles_);
    return 0;
  }
  auto& state = transfer->steps[step % kStepsInFlight];
  if ((state.load(std::memory_order_relaxed) & Transfer::kLive) != 0) count(lost_ends_);
  state.store(static_cast<std::uint16_t>((step & 0xfff) << 4 | Transfer::kLive), std::memory_order_relaxed);
  count_alone(transfer->channel.load(std::memory_order_relaxed)->begun);
  return comm_handle::as(handle, Type::kTransferStep, step);
}

CommTracker::Transfer* CommTracker::step_of(CommHandle handle, std::atomic<std::uint16_t>** step) noexcept {
  Transfer* transfer = find(transfers_, kTransfers, handle, Type::kTransferStep);
  if (transfer == nullptr) return nullptr;
  const std::uint32_t number = comm_handle::extra_of(handle);
  *step = &transfer->steps[number % kStepsInFlight];
  const std::uint16_t state = (*step)->load(std::memory_order_relaxed);
  if (state >> 4 == number && (state & Transfer::kLive) != 0 && transfer->is_open.load(std::memory_order_relaxed))
      [[likely]] {
    return transfer;
  }
  count(stale_handles_);
  return nullptr;
}

void CommTracker::enter(Recorder& recorder, CommHandle handle, ChannelState state, std::uint64_t bytes) noexcept {
  if (handle == 0) return;
  std::atomic<std::uint16_t>* step;
  const Transfer* transfer = step_of(handle, &step);
  if (transfer == nullptr) return;
  ChannelRecord& channel = *transfer->channel.load(std::memory_order_relaxed);
  const std::uint16_t before = step->load(std::memory_order_relaxed);
  const auto last = static_cast<ChannelState>(before & Transfer::kStateMask);
  step->store(static_cast<std::uint16_t>((before & ~Transfer::kStateMask) | static_cast<std::uint16_t>(state)),
              std::memory_order_relaxed);
  // Received is what NCCL flushes next, or, where nothing must be flushed, hands to the GPU at once.
  const bool has_moved = (state == ChannelState::kSendWait && last != state) ||
                         (state == ChannelState::kRecvFlushWait && last != state) ||
                         (state == ChannelState::kRecvGpuWait && last != state && last != ChannelState::kRecvFlushWait);
  if (has_moved) {
    count_alone(channel.moved);
    count_alone(channel.moved_bytes, bytes);
  }
  enter_state(channel, state, recorder.clock().ticks());
}

void CommTracker::end_step(Recorder& recorder, CommHandle handle) noexcept {
  std::atomic<std::uint16_t>* step;
  const Transfer* transfer = step_of(handle, &step);
  if (transfer == nullptr) return;
  step->store(0, std::memory_order_relaxed);
  ChannelRecord& channel = *transfer->channel.load(std::memory_order_relaxed);
  count_alone(channel.done);
  // Other steps in flight wait for what they waited for before.
  if (channel.done.load(std::memory_order_relaxed) == channel.begun.load(std::memory_order_relaxed)) {
    enter_state(channel, ChannelState::kIdle, recorder.clock().ticks());
  }
}

void CommTracker::end_transfer(Recorder& recorder, CommHandle handle) noexcept {
  Transfer* transfer = find(transfers_, kTransfers, handle, Type::kTransfer);
  if (transfer == nullptr) return;
  const CommHandle op_handle = transfer->op.load(std::memory_order_relaxed);
  // release: pairs with take(), after which all of it is another's.
  if (!transfer->is_open.exchange(false, std::memory_order_release)) return count(stale_handles_);
  if (op_handle == 0) return;
  if (Op* op = op_of(op_handle)) {
    keep_greatest(op->last_transfer_ticks, recorder.clock().ticks());
    op->ended_transfers.fetch_add(1, std::memory_order_release);  // pairs with the acquire in read_op()
  }
}

CommHandle CommTracker::begin_kernel(Recorder& recorder, CommHandle communicator_handle, CommHandle op_handle,
                                     std::uint32_t channel, std::uint64_t device_ns) noexcept {
  Communicator* communicator = communicator_of(communicator_handle);
  Op* op = op_handle == 0 || communicator == nullptr ? nullptr : op_of(op_handle);
  // Another plug-in may have asked for those of every op.
  if (op == nullptr || !op->asks_kernels()) return 0;
  auto& last_stop = communicator->last_kernel_ns[channel % kChannels];
  // NCCL's ring of 64 entries a channel may have run over: the time is then a later op's, and the next ones go back.
  if (device_ns == 0 || device_ns < last_stop.load(std::memory_order_relaxed)) {
    op->has_rejected_times.store(true, std::memory_order_relaxed);
    count(rejected_times_);
    return 0;
  }
  std::uint64_t number;
  Kernel& kernel = take(kernels_, kKernels, next_kernel_, &number);
  kernel.has_stopped.store(false, std::memory_order_relaxed);
  kernel.op.store(op_handle, std::memory_order_relaxed);
  kernel.start.store(device_ns, std::memory_order_relaxed);
  kernel.begun_ticks.store(recorder.clock().ticks(), std::memory_order_relaxed);
  kernel.last_stop.store(&last_stop, std::memory_order_relaxed);
  op->kernels.fetch_add(1, std::memory_order_relaxed);
  const CommHandle made = comm_handle::make(nonce_, Type::kKernel, number, kKernels, channel);
  kernel.ticket.store(comm_handle::ticket_of(made), std::memory_order_release);  // pairs with the acquire in find()
  return made;
}

void CommTracker::kernel_stopped(Recorder& recorder, CommHandle handle, std::uint64_t device_ns) noexcept {
  if (handle == 0) return;
  Kernel* kernel = find(kernels_, kKernels, handle, Type::kKernel);
  if (kernel == nullptr) return;
  if (!kernel->is_open.load(std::memory_order_relaxed) ||
      kernel->has_stopped.exchange(true, std::memory_order_relaxed)) {
    return count(stale_handles_);
  }
  const std::uint64_t start = kernel->start.load(std::memory_order_relaxed);
  Op* op = op_of(kernel->op.load(std::memory_order_relaxed));
  if (device_ns == 0 || device_ns < start) {
    if (op != nullptr) op->has_rejected_times.store(true, std::memory_order_relaxed);
    return count(rejected_times_);
  }
  keep_greatest(*kernel->last_stop.load(std::memory_order_relaxed), device_ns);
  if (op == nullptr) return;
  if (keep_least(op->kernel_start, start)) {
    op->kernel_begun_ticks.store(kernel->begun_ticks.load(std::memory_order_relaxed), std::memory_order_relaxed);
  }
  keep_greatest(op->kernel_seen_ticks, recorder.clock().ticks());
  if (keep_greatest(op->kernel_stop, device_ns)) {
    op->slowest_channel.store(static_cast<std::uint8_t>(comm_handle::extra_of(handle)), std::memory_order_relaxed);
  }
}

void CommTracker::end_kernel(CommHandle handle) noexcept {
  Kernel* kernel = find(kernels_, kKernels, handle, Type::kKernel);
  if (kernel == nullptr) return;
  const CommHandle op_handle = kernel->op.load(std::memory_order_relaxed);
  // release: pairs with take(), after which all of it is another's.
  if (!kernel->is_open.exchange(false, std::memory_order_release)) return count(stale_handles_);
  if (Op* op = op_of(op_handle)) {
    op->ended_kernels.fetch_add(1, std::memory_order_release);  // pairs with the acquire in read_op()
  }
}

}  // namespace smon_rt
