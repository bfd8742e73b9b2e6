#include "record/ring_collector.h"

#include <algorithm>
#include <utility>

#include "format/span_coding.h"
#include "format/trace_encoder.h"

namespace smon_rt {

RingCollector::RingCollector(Arena& arena, const ClockConverter& clock, EventResolver& resolver,
                             std::int64_t max_age_ns, CommTimes* comm_times)
    : arena_(arena),
      clock_(clock),
      resolver_(resolver),
      comm_times_(comm_times),
      max_age_ns_(max_age_ns),
      cursors_(arena.threads().size()) {
  batch_.reserve(kSpansPerPacket);
}

std::uint64_t RingCollector::look(std::int64_t now_ns, bool everything) {
  std::uint64_t due_count = 0;
  std::size_t exited_count = 0;
  filled_ratio_ = 0;
  for (std::size_t i = 0; i < cursors_.size(); ++i) {
    ThreadRecord& record = arena_.threads()[i];
    Cursor& cursor = cursors_[i];
    cursor.begin = cursor.end = 0;
    // acquire: pairs with the release with which a thread goes live or exits: ring_id and capacity are set.
    const ThreadState state = record.state.load(std::memory_order_acquire);
    if (state == ThreadState::kFree) continue;
    // acquire: pairs with the producer's release in push: the entries before this index are written.
    const std::uint64_t end = record.write_index.load(std::memory_order_acquire);
    const std::uint64_t begin = record.read_index.load(std::memory_order_relaxed);  // ours
    const std::uint64_t count = end - begin;
    if (state == ThreadState::kExited) ++exited_count;
    if (cursor.ring_id != record.ring_id) cursor.seen_end = 0;
    if (cursor.ring_id != record.ring_id || count == 0) cursor.waiting_since_ns = 0;
    cursor.ring_id = record.ring_id;
    const auto filled_count = static_cast<double>(end - std::exchange(cursor.seen_end, end));
    filled_ratio_ = std::max(filled_ratio_, filled_count / record.ring_capacity);
    if (count == 0) {
      // Without new spans an exited thread's record can be had again; commit() does it.
      continue;
    }
    if (cursor.waiting_since_ns == 0) cursor.waiting_since_ns = now_ns;
    const bool is_due = everything || state == ThreadState::kExited || count * 4 >= record.ring_capacity ||
                        now_ns - cursor.waiting_since_ns >= max_age_ns_;
    if (!is_due) continue;
    cursor.begin = begin;
    const bool give_up = everything || count * 2 >= record.ring_capacity;
    cursor.end = resolver_.writable_until(i, end, give_up);
    if (comm_times_ != nullptr) {
      cursor.end = comm_times_->writable_until(arena_.ring(static_cast<std::uint32_t>(i)), begin, cursor.end, give_up);
    }
    due_count += cursor.end - begin;
  }
  filled_ratio_ = std::max(filled_ratio_, static_cast<double>(exited_count) / static_cast<double>(cursors_.size()));
  return due_count;
}

void RingCollector::encode(std::string& out) {
  for (std::size_t i = 0; i < cursors_.size(); ++i) {
    if (cursors_[i].begin != cursors_[i].end) encode_ring(out, i, cursors_[i]);
  }
}

void RingCollector::encode_ring(std::string& out, std::size_t thread, const Cursor& cursor) {
  const std::span<const Span> ring = arena_.ring(thread);
  const std::uint64_t mask = ring.size() - 1;
  for (std::uint64_t first = cursor.begin; first < cursor.end; first += batch_.size()) {
    const std::uint64_t last = std::min<std::uint64_t>(cursor.end, first + kSpansPerPacket);
    batch_.clear();
    for (std::uint64_t index = first; index < last; ++index) {
      Span& span = batch_.emplace_back(ring[index & mask]);
      span.start = clock_.to_monotonic_ns(span.start);
      span.end = clock_.to_monotonic_ns(span.end);
    }
    if (comm_times_ != nullptr) comm_times_->add_times(batch_);
    const auto has_times = [](const Span& span) { return has_device_times(span.time_source); };
    if (std::ranges::any_of(batch_, has_times)) resolver_.resolve(batch_, out);
    append_spans(out, cursor.ring_id, first, batch_);
  }
}

void RingCollector::commit() {
  for (std::size_t i = 0; i < cursors_.size(); ++i) {
    ThreadRecord& record = arena_.threads()[i];
    Cursor& cursor = cursors_[i];
    if (cursor.begin != cursor.end) {
      // release: pairs with the producer's acquire when its ring seems full: the entries have been copied.
      record.read_index.store(cursor.end, std::memory_order_release);
      cursor.waiting_since_ns = 0;
    }
    if (record.state.load(std::memory_order_acquire) == ThreadState::kExited &&
        record.write_index.load(std::memory_order_acquire) == record.read_index.load(std::memory_order_relaxed)) {
      // release: pairs with the acquire of the thread that claims the record next.
      record.state.store(ThreadState::kFree, std::memory_order_release);
    }
  }
}

}  // namespace smon_rt
