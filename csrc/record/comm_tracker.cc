#include "record/comm_tracker.h"

#include <sys/random.h>
#include <unistd.h>

#include "record/comm_slots.h"
#include "record/sequences.h"

namespace smon_rt {

namespace {

constexpr std::uint32_t kinds_of_communication() {
  std::uint32_t kinds = 0;
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    if (is_communication(static_cast<Kind>(kind))) kinds |= std::uint32_t{1} << kind;
  }
  return kinds;
}

std::uint16_t make_nonce() {
  std::uint16_t nonce = 0;
  if (::getrandom(&nonce, sizeof(nonce), GRND_NONBLOCK) != sizeof(nonce)) {
    // An early boot: what differs between processes that talk to each other must do.
    nonce = static_cast<std::uint16_t>(static_cast<std::uint32_t>(::getpid()) * 0x9e37U ^ Clock::counter_ticks());
  }
  return nonce == 0 ? 1 : nonce;  // no handle may be 0
}

std::uint64_t pack(const CommOpFacts& facts) {
  return static_cast<std::uint64_t>(facts.function) | static_cast<std::uint64_t>(facts.datatype) << 8 |
         static_cast<std::uint64_t>(facts.algorithm) << 16 | static_cast<std::uint64_t>(facts.protocol) << 24 |
         static_cast<std::uint64_t>(facts.channel_count) << 32 | static_cast<std::uint64_t>(facts.asks_kernels) << 40;
}

void unpack(std::uint64_t kinds, CommOpFacts& facts) {
  facts.function = static_cast<CommFunction>(kinds & 0xff);
  facts.datatype = static_cast<CommDatatype>(kinds >> 8 & 0xff);
  facts.algorithm = static_cast<CommAlgorithm>(kinds >> 16 & 0xff);
  facts.protocol = static_cast<CommProtocol>(kinds >> 24 & 0xff);
  facts.channel_count = static_cast<std::uint8_t>(kinds >> 32 & 0xff);
  facts.asks_kernels = (kinds >> 40 & 1) != 0;
}

// What spans of a communicator are numbered by, in one word: a kind, and in 24 bits a peer.
std::uint32_t numbering_of(Kind kind, std::int32_t peer) {
  return static_cast<std::uint32_t>(kind) << 24 | (static_cast<std::uint32_t>(peer) & 0xff'ffff);
}
Kind kind_of(std::uint32_t numbering) {
  return static_cast<Kind>(numbering >> 24);
}
std::int32_t peer_of(std::uint32_t numbering) {
  return static_cast<std::int32_t>(numbering << 8) >> 8;
}

}  // namespace

CommTracker::CommTracker()
    : nonce_(make_nonce()),
      fork_count_(fork_count()),
      pid_(::getpid()),
      communicators_(std::make_unique<Communicator[]>(kCommunicators)),
      calls_(std::make_unique<Call[]>(kCalls)),
      ops_(std::make_unique<Op[]>(kOps)),
      transfers_(std::make_unique<Transfer[]>(kTransfers)),
      kernels_(std::make_unique<Kernel[]>(kKernels)) {}

CommTracker::~CommTracker() = default;

bool CommTracker::is_of(CommHandle handle, Type type) noexcept {
  if (comm_handle::nonce_of(handle) == nonce_ && comm_handle::type_of(handle) == type) [[likely]]
    return true;
  count(foreign_handles_);
  return false;
}

CommHandle CommTracker::open_communicator(std::uint64_t library_id, bool has_network) noexcept {
  const std::uint64_t number = next_communicator_.fetch_add(1, std::memory_order_relaxed);
  // Slots are claimed wherever one is free: unlike ops, communicators live long, and many of them are never closed.
  for (std::size_t probe = 0; probe < kCommunicators; ++probe) {
    const std::uint64_t at = (number + probe) % kCommunicators + number / kCommunicators * kCommunicators;
    Communicator& slot = communicators_[at % kCommunicators];
    bool is_free = false;
    if (!slot.is_taken.compare_exchange_strong(is_free, true, std::memory_order_acq_rel)) continue;
    slot.number.store(static_cast<std::uint32_t>(number + 1), std::memory_order_relaxed);
    slot.library_id.store(library_id, std::memory_order_relaxed);
    slot.has_network.store(has_network, std::memory_order_relaxed);
    slot.comm_id.store(kNoId, std::memory_order_relaxed);
    for (auto& last : slot.last_kernel_ns) last.store(0, std::memory_order_relaxed);
    const CommHandle handle = comm_handle::make(nonce_, Type::kCommunicator, at, kCommunicators);
    // release: pairs with the acquire in find().
    slot.ticket.store(comm_handle::ticket_of(handle), std::memory_order_release);
    return handle;
  }
  count(untracked_);
  return 0;
}

CommTracker::Communicator* CommTracker::communicator_of(CommHandle handle) noexcept {
  return find(communicators_, kCommunicators, handle, Type::kCommunicator);
}

bool CommTracker::close_communicator(Recorder* recorder, CommHandle handle, bool* had_network) noexcept {
  Communicator* communicator = communicator_of(handle);
  if (communicator == nullptr) return false;
  const std::uint32_t number = communicator->number.load(std::memory_order_relaxed);
  *had_network = communicator->has_network.load(std::memory_order_relaxed);
  std::uint32_t ticket = comm_handle::ticket_of(handle);
  // Of two that close it one wins; the slot is free only once its ticket is gone.
  if (!communicator->ticket.compare_exchange_strong(ticket, 0, std::memory_order_acq_rel)) return false;
  communicator->is_taken.store(false, std::memory_order_release);
  if (recorder != nullptr && *had_network) free_channels(*recorder, number);
  return true;
}

std::uint16_t CommTracker::comm_id_of(CommHandle handle) noexcept {
  const Communicator* communicator = communicator_of(handle);
  return communicator == nullptr ? kNoId : communicator->comm_id.load(std::memory_order_relaxed);
}

CommHandle CommTracker::begin_group() noexcept {
  const std::uint64_t number = next_group_.fetch_add(1, std::memory_order_relaxed);
  return comm_handle::make(nonce_, Type::kGroup, number, 0x10000);
}

CommTracker::Join CommTracker::join(Recorder& recorder, Communicator& communicator, CommHandle group) noexcept {
  constexpr std::uint32_t kKinds = kinds_of_communication();
  const Token token = recorder.find_open(kKinds);
  Span span;
  if (token == 0 || !recorder.read_open(token, &span) || span.name_or_comm_id == kNoId) return {};
  const std::uint32_t number = communicator.number.load(std::memory_order_relaxed);
  Joined& owner = joined_[(token * 0x9e3779b97f4a7c15 >> 56) % joined_.size()];
  if (owner.span.load(std::memory_order_relaxed) == token &&
      (group == 0 || owner.group.load(std::memory_order_relaxed) != group ||
       owner.communicator.load(std::memory_order_relaxed) != number)) {
    return {};
  }
  const std::uint16_t known_id = communicator.comm_id.load(std::memory_order_relaxed);
  if (known_id != kNoId && known_id != span.name_or_comm_id) return {};
  owner.span.store(token, std::memory_order_relaxed);
  owner.group.store(group, std::memory_order_relaxed);
  owner.communicator.store(number, std::memory_order_relaxed);
  communicator.comm_id.store(span.name_or_comm_id, std::memory_order_relaxed);
  return {span.name_or_comm_id, span.comm_seq, numbering_of(span.kind, span.peer)};
}

CommHandle CommTracker::begin_call(Recorder& recorder, CommHandle handle, CommHandle group, bool is_captured) noexcept {
  Communicator* communicator = communicator_of(handle);
  if (communicator == nullptr) return 0;
  if (group != 0 && !is_of(group, Type::kGroup)) group = 0;
  const Join joined = join(recorder, *communicator, group);
  std::uint64_t number;
  Call& call = take(calls_, kCalls, next_call_, &number);
  call.comm_id.store(joined.comm_id, std::memory_order_relaxed);
  call.comm_seq.store(joined.comm_seq, std::memory_order_relaxed);
  call.span_numbering.store(joined.span_numbering, std::memory_order_relaxed);
  call.is_captured.store(is_captured, std::memory_order_relaxed);
  const CommHandle made = comm_handle::make(nonce_, Type::kCall, number, kCalls);
  call.ticket.store(comm_handle::ticket_of(made), std::memory_order_release);  // pairs with the acquire in find()
  return made;
}

CommHandle CommTracker::begin_op(Recorder& recorder, CommHandle handle, CommHandle call_handle,
                                 const CommOpFacts& facts) noexcept {
  Communicator* communicator = communicator_of(handle);
  if (communicator == nullptr) return 0;
  Join joined;
  bool is_captured = false;
  const Call* call = call_handle == 0 ? nullptr : find(calls_, kCalls, call_handle, Type::kCall);
  if (call != nullptr) {
    joined = {call->comm_id.load(std::memory_order_relaxed), call->comm_seq.load(std::memory_order_relaxed),
              call->span_numbering.load(std::memory_order_relaxed)};
    is_captured = call->is_captured.load(std::memory_order_relaxed);
  } else if (call_handle == 0) {
    joined = join(recorder, *communicator, 0);
  }
  if (joined.comm_seq != 0) count(joined_ops_);
  count(ops_begun_);
  std::uint64_t number;
  Op& op = take(ops_, kOps, next_op_, &number);
  op.communicator.store(communicator->number.load(std::memory_order_relaxed), std::memory_order_relaxed);
  op.kinds.store(pack(facts), std::memory_order_relaxed);
  op.peer.store(facts.peer, std::memory_order_relaxed);
  op.step.store(static_cast<std::uint32_t>(recorder.header().step.load(std::memory_order_relaxed)),
                std::memory_order_relaxed);
  op.payload_bytes.store(facts.payload_bytes, std::memory_order_relaxed);
  op.library_seq.store(facts.library_seq, std::memory_order_relaxed);
  op.comm_seq.store(joined.comm_seq, std::memory_order_relaxed);
  op.comm_id.store(joined.comm_id, std::memory_order_relaxed);
  op.span_numbering.store(joined.span_numbering, std::memory_order_relaxed);
  op.is_captured.store(is_captured, std::memory_order_relaxed);
  op.is_sampled.store(recorder.is_sampled(), std::memory_order_relaxed);
  op.slowest_channel.store(0, std::memory_order_relaxed);
  op.has_rejected_times.store(false, std::memory_order_relaxed);
  op.enqueued_ticks.store(0, std::memory_order_relaxed);
  op.first_transfer_ticks.store(0, std::memory_order_relaxed);
  op.last_transfer_ticks.store(0, std::memory_order_relaxed);
  op.kernel_start.store(0, std::memory_order_relaxed);
  op.kernel_stop.store(0, std::memory_order_relaxed);
  op.kernel_begun_ticks.store(0, std::memory_order_relaxed);
  op.kernel_seen_ticks.store(0, std::memory_order_relaxed);
  for (auto* counter : {&op.transfers, &op.ended_transfers, &op.kernels, &op.ended_kernels}) {
    counter->store(0, std::memory_order_relaxed);
  }
  op.start_ticks.store(recorder.clock().ticks(), std::memory_order_relaxed);
  const CommHandle made = comm_handle::make(nonce_, Type::kOp, number, kOps);
  op.ticket.store(comm_handle::ticket_of(made), std::memory_order_release);  // pairs with the acquire in find()
  if (facts.asks_kernels) kernel_ops_.fetch_add(1, std::memory_order_release);
  return made;
}

CommTracker::Op* CommTracker::op_of(CommHandle handle) noexcept {
  return find(ops_, kOps, handle, Type::kOp);
}

void CommTracker::end(Recorder& recorder, CommHandle handle) noexcept {
  if (handle == 0) return;
  switch (comm_handle::type_of(handle)) {
    case Type::kTransferStep:
      return end_step(recorder, handle);
    case Type::kTransfer:
      return end_transfer(recorder, handle);
    case Type::kKernel:
      return end_kernel(handle);
    case Type::kOp:
      return end_op(recorder, handle);
    case Type::kCall:
      if (Call* call = find(calls_, kCalls, handle, Type::kCall)) {
        // NCCL ends some calls twice, and the second time after others: no stale handle, since nothing hangs on it.
        call->is_open.store(false, std::memory_order_release);  // pairs with take()
      }
      return;
    case Type::kGroup:
      (void)is_of(handle, Type::kGroup);
      return;
    default:
      count(foreign_handles_);
  }
}

void CommTracker::end_op(Recorder& recorder, CommHandle handle) noexcept {
  Op* op = op_of(handle);
  if (op == nullptr) return;
  std::int64_t not_yet = 0;
  if (!op->enqueued_ticks.compare_exchange_strong(not_yet, recorder.clock().ticks(), std::memory_order_relaxed)) {
    count(stale_handles_);
  }
}

bool CommTracker::read_op(std::uint64_t number, CommOp* read) const noexcept {
  const Op& op = ops_[number % kOps];
  const std::uint32_t ticket = comm_handle::ticket_of(comm_handle::make(nonce_, Type::kOp, number, kOps));
  if (op.ticket.load(std::memory_order_acquire) != ticket) return false;  // pairs with the release of begin_op()
  const auto get = [](const auto& atomic) { return atomic.load(std::memory_order_acquire); };
  unpack(get(op.kinds), read->facts);
  read->facts.peer = get(op.peer);
  read->facts.payload_bytes = get(op.payload_bytes);
  read->facts.library_seq = get(op.library_seq);
  read->communicator = get(op.communicator);
  read->step = get(op.step);
  read->comm_id = get(op.comm_id);
  read->comm_seq = get(op.comm_seq);
  const std::uint32_t numbering = get(op.span_numbering);
  read->span_kind = kind_of(numbering);
  read->span_peer = read->comm_seq != 0 ? peer_of(numbering) : kNoPeer;
  read->is_captured = get(op.is_captured);
  read->is_sampled = get(op.is_sampled);
  read->start_ticks = get(op.start_ticks);
  read->enqueued_ticks = get(op.enqueued_ticks);
  read->is_enqueued = read->enqueued_ticks != 0;
  read->first_transfer_ticks = get(op.first_transfer_ticks);
  read->last_transfer_ticks = get(op.last_transfer_ticks);
  const std::uint32_t ended_transfers = get(op.ended_transfers);  // first: more may begin meanwhile, never fewer
  read->transfers = get(op.transfers);
  read->open_transfers = read->transfers - ended_transfers;
  const std::uint32_t ended_kernels = get(op.ended_kernels);
  read->kernels = get(op.kernels);
  read->open_kernels = read->kernels - ended_kernels;
  read->kernel_start_device_ns = get(op.kernel_start);
  read->kernel_stop_device_ns = get(op.kernel_stop);
  read->kernel_begun_ticks = get(op.kernel_begun_ticks);
  read->kernel_seen_ticks = get(op.kernel_seen_ticks);
  read->slowest_channel = get(op.slowest_channel);
  read->has_rejected_times = get(op.has_rejected_times);
  return op.ticket.load(std::memory_order_relaxed) == ticket;  // the acquire loads above keep it below them
}

CommCounts CommTracker::counts() const noexcept {
  const auto get = [](const Counter& counter) { return counter.load(std::memory_order_relaxed); };
  return {.communicators = get(next_communicator_),
          .ops = get(ops_begun_),
          .joined_ops = get(joined_ops_),
          .foreign_handles = get(foreign_handles_),
          .stale_handles = get(stale_handles_),
          .lost_ends = get(lost_ends_),
          .rejected_times = get(rejected_times_),
          .untracked = get(untracked_)};
}

}  // namespace smon_rt
