#include "record/comm_collector.h"

#include <algorithm>
#include <utility>

#include "format/trace_encoder.h"

namespace smon_rt {
namespace {

constexpr std::uint64_t kOps = CommTracker::kOps;
// Ops are taken before their time when so many lie behind them that their slots will be needed.
constexpr std::uint64_t kHurry = kOps / 4;   // do not wait for a packet's worth of them
constexpr std::uint64_t kBehind = kOps / 2;  // nor for them to be over

std::uint64_t not_negative(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

TraceCommCounts as_record(const CommCounts& counts) {
  return {counts.communicators, counts.ops,       counts.joined_ops,     counts.foreign_handles,
          counts.stale_handles, counts.lost_ends, counts.rejected_times, counts.untracked};
}

}  // namespace

CommCollector::CommCollector(FindCommTracker find, Arena& arena, const ClockConverter& clock)
    : find_(find), arena_(arena), clock_(clock) {
  // What came before is another recording's.
  if (const CommTracker* found = tracker()) {
    next_ = seen_end_ = settled_end_ = found->op_end();
    written_counts_ = as_record(found->counts());
  }
}

bool CommCollector::is_due(const CommOp& op, std::int64_t now_ns, std::uint64_t behind) const {
  if (behind > kBehind || clock_.to_monotonic_ns(op.start_ticks) < now_ns - kUnfinished.count()) return true;
  if (!op.is_enqueued || op.open_transfers != 0 || op.open_kernels != 0) return false;
  const std::int64_t last_ticks = std::max({op.enqueued_ticks, op.last_transfer_ticks, op.kernel_seen_ticks});
  return clock_.to_monotonic_ns(last_ticks) < now_ns - kQuiet.count();
}

TraceCommOp CommCollector::in_nanoseconds(std::uint64_t number, const CommOp& op) const {
  TraceCommOp taken;
  taken.number = number;
  taken.start_ns = clock_.to_monotonic_ns(op.start_ticks);
  if (op.is_enqueued) taken.enqueue_ns = not_negative(clock_.to_monotonic_ns(op.enqueued_ticks) - taken.start_ns);
  if (op.transfers != 0) {
    taken.first_transfer_ns = clock_.to_monotonic_ns(op.first_transfer_ticks);
    if (op.last_transfer_ticks != 0) {
      taken.transfer_ns = not_negative(clock_.to_monotonic_ns(op.last_transfer_ticks) - taken.first_transfer_ns);
    }
  }
  if (op.kernels != 0 && !op.has_rejected_times) {  // what is left would not say when it ran, nor which one was last
    taken.kernel_count = op.kernels;
    taken.open_kernel_count = op.open_kernels;
    taken.kernel_start_device_ns = op.kernel_start_device_ns;
    taken.kernel_duration_device_ns =
        op.kernel_stop_device_ns - std::min(op.kernel_start_device_ns, op.kernel_stop_device_ns);
    taken.slowest_channel = op.slowest_channel;
  }
  taken.payload_bytes = op.facts.payload_bytes;
  taken.library_seq = op.facts.library_seq;
  taken.comm_seq = op.comm_seq;
  taken.step = op.step;
  taken.communicator = op.communicator;
  taken.peer = op.facts.peer;
  taken.transfer_count = op.transfers;
  taken.open_transfer_count = op.open_transfers;
  taken.comm_id = op.comm_id;
  taken.function = op.facts.function;
  taken.datatype = op.facts.datatype;
  taken.algorithm = op.facts.algorithm;
  taken.protocol = op.facts.protocol;
  taken.channel_count = op.facts.channel_count;
  taken.flags = static_cast<std::uint8_t>((op.is_captured ? comm_op_flag::kCaptured : 0) |
                                          (op.is_enqueued ? comm_op_flag::kEnqueued : 0));
  return taken;
}

void CommCollector::append_ops(std::string& out, std::int64_t now_ns, bool everything) {
  const CommTracker* found = tracker();
  if (found == nullptr) return;
  const std::uint64_t end = found->op_end();
  settled_end_ = std::exchange(seen_end_, end);
  filled_ratio_ = static_cast<double>(end - settled_end_) / static_cast<double>(kOps);
  if (end - next_ > kOps) overwritten_ops_ += end - kOps - std::exchange(next_, end - kOps);
  if (!everything && now_ns - last_take_ns_ < kQuiet.count() && end - next_ < kHurry) return;
  last_take_ns_ = now_ns;
  take_ops(*found, end, now_ns, everything);
  append_comm_ops(out, ops_);
}

void CommCollector::take_ops(const CommTracker& tracker, std::uint64_t end, std::int64_t now_ns, bool everything) {
  ops_.clear();
  for (; next_ != end; ++next_) {
    CommOp op;
    if (!tracker.read_op(next_, &op)) {
      if (tracker.op_end() - next_ > kOps) {
        ++overwritten_ops_;
      } else if (next_ >= settled_end_ && !everything) {
        return;  // just being written; else a number that no op has got, since its slot was in use
      }
      continue;
    }
    if (!op.is_sampled) continue;
    if (!everything && !is_due(op, now_ns, end - next_)) return;
    ops_.push_back(in_nanoseconds(next_, op));
  }
}

std::vector<TraceCommChannel> CommCollector::read_channels() const {
  std::vector<TraceCommChannel> channels;
  for (const ChannelRecord& record : arena_.channels()) {
    const auto get = [](const auto& value) { return value.load(std::memory_order_relaxed); };
    const std::uint64_t key = record.key.load(std::memory_order_acquire);  // pairs with the release of its claim
    if (key == 0) continue;
    TraceCommChannel& channel = channels.emplace_back();
    channel.communicator = static_cast<std::uint32_t>(key >> 16);
    channel.channel = static_cast<std::uint32_t>(key >> 1 & 0xff);
    channel.is_send = (key & 1) != 0;
    channel.nccl_comm = get(record.nccl_comm);
    channel.comm_id = get(record.comm_id);
    channel.peer = get(record.peer);
    channel.begun = get(record.begun);
    channel.moved = get(record.moved);
    channel.done = get(record.done);
    channel.moved_bytes = get(record.moved_bytes);
    channel.state = static_cast<std::uint32_t>(get(record.state));
    const std::int64_t state_ticks = get(record.state_ticks);
    channel.state_ns = state_ticks == 0 ? 0 : clock_.to_monotonic_ns(state_ticks);
    if (get(record.key) != key) channels.pop_back();  // its communicator was closed meanwhile
  }
  return channels;
}

void CommCollector::append_state(std::string& out, std::int64_t now_ns, bool everything) {
  const CommTracker* found = tracker();
  if (found == nullptr) return;
  if (const TraceCommCounts counts = as_record(found->counts()); counts != written_counts_) {
    append_comm_counts(out, counts);
    written_counts_ = counts;
  }
  if (!everything && !written_channels_.empty() && now_ns - channels_written_ns_ < kChannelsEvery.count()) return;
  std::vector<TraceCommChannel> channels = read_channels();
  if (channels == written_channels_) return;
  append_comm_channels(out, channels);
  written_channels_ = std::move(channels);
  channels_written_ns_ = now_ns;
}

}  // namespace smon_rt
