#include "checkpoint/capture.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace smon_rt {
namespace {

using agent_messages::SkipCause;

void nap() {
  const timespec time{0, 20'000};
  ::nanosleep(&time, nullptr);
}

template <std::size_t kSize>
void set_text(char (&to)[kSize], const std::string& text) {
  const std::size_t length = std::min(text.size(), kSize - 1);
  std::memcpy(to, text.data(), length);
  std::memset(to + length, 0, kSize - length);
}

}  // namespace

Capture::Capture(GpuCopier& copier, SlotIdentity identity, const CaptureOptions& options,
                 std::function<void(CaptureEnd)> on_end, std::function<void()> wake_helper)
    : copier_(copier),
      identity_(std::move(identity)),
      options_(options),
      on_end_(std::move(on_end)),
      wake_helper_(std::move(wake_helper)),
      pool_(options.copy_threads, [this] {
        is_host_done_.store(true, std::memory_order_release);
        end_part();
      }) {}

Result<void> Capture::begin(CaptureTarget target, std::span<const std::uint64_t> addresses, std::uint64_t stream) {
  begun_ns_ = monotonic_ns();
  blocked_since_ns_.store(begun_ns_, std::memory_order_relaxed);
  blocked_ns_.store(0, std::memory_order_relaxed);
  target_ = std::move(target);
  const CaptureLayout& layout = *target_.layout;
  if (addresses.empty()) addresses = layout.addresses;
  if (addresses.size() != layout.addresses.size()) return Error{"not as many addresses as the layout has ranges"};
  open_slot();
  is_cancelled_.store(false, std::memory_order_relaxed);
  cause_ = SkipCause::kUnknown;
  text_.clear();

  // The GPU first: it is what can fail.
  if (layout.has_gpu()) {
    if (auto begun = begin_gpu(addresses, stream); !begun) return begun;
  }
  const bool has_host = !layout.host_stable.empty();
  parts_left_.store(1 + (layout.has_gpu() ? 1 : 0) + (has_host ? 1 : 0), std::memory_order_relaxed);
  is_host_done_.store(!has_host, std::memory_order_relaxed);
  gpu_part_.store(layout.has_gpu() ? GpuPart::kBegun : GpuPart::kNone, std::memory_order_relaxed);
  // release: pairs with is_under_way(): the helper sees all of the above.
  is_under_way_.store(true, std::memory_order_release);
  if (layout.has_gpu()) wake_helper_();

  host_ranges_.clear();
  std::byte* const content = target_.mapping->content().data();
  for (const CaptureLayout::Part& part : layout.host_stable) {
    host_ranges_.push_back({reinterpret_cast<const std::byte*>(addresses[part.range]), content + part.offset,
                            static_cast<std::size_t>(part.bytes)});
  }
  if (has_host) pool_.start(host_ranges_, layout.host_batches);
  copy_volatile(addresses);
  blocked_ns_.fetch_add(static_cast<std::uint64_t>(monotonic_ns() - begun_ns_), std::memory_order_relaxed);
  blocked_since_ns_.store(0, std::memory_order_relaxed);
  end_part();
  return {};
}

void Capture::open_slot() {
  SlotHeader& header = target_.mapping->header();
  const std::uint64_t before = header.generation.load(std::memory_order_relaxed);
  generation_ = before + 1 + before % 2;
  // acquire keeps what follows behind it: who sees any of it sees an odd generation. Pairs with readers' acquire.
  header.generation.exchange(generation_, std::memory_order_acq_rel);
  header.content_hash.store(0, std::memory_order_relaxed);
  header.magic = kSlotMagic;
  header.format = 1;
  header.layout_epoch = target_.layout->epoch;
  header.step = target_.label.step;
  header.incarnation = target_.label.incarnation;
  header.reserved = 0;
  header.content_bytes = target_.layout->content_bytes;
  if (target_.mapping->written_epoch == target_.layout->epoch) return;
  set_text(header.run_id, identity_.run_id);
  set_text(header.owner, identity_.owner);
  set_text(header.topology, identity_.topology);
  const auto& content_header = target_.layout->header;
  std::ranges::copy(content_header, target_.mapping->content().begin());
  target_.mapping->written_epoch = target_.layout->epoch;
}

void Capture::copy_volatile(std::span<const std::uint64_t> addresses) {
  std::byte* const content = target_.mapping->content().data();
  for (const CaptureLayout::Part& part : target_.layout->host_volatile) {
    std::memcpy(content + part.offset, reinterpret_cast<const std::byte*>(addresses[part.range]), part.bytes);
  }
}

std::vector<GpuCopyRange> Capture::gpu_ranges(const std::vector<CaptureLayout::Part>& parts,
                                              std::span<const std::uint64_t> addresses) const {
  std::byte* const content = target_.mapping->content().data();
  std::vector<GpuCopyRange> ranges;
  ranges.reserve(parts.size());
  for (const CaptureLayout::Part& part : parts) {
    ranges.push_back({addresses[part.range], content + part.offset, static_cast<std::size_t>(part.bytes)});
  }
  return ranges;
}

Result<void> Capture::begin_gpu(std::span<const std::uint64_t> addresses, std::uint64_t stream) {
  gpu_wait_ns_.fetch_add(copier_.gpu_wait_ns(), std::memory_order_relaxed);  // at the gate of the capture before
  gpu_stable_ = gpu_ranges(target_.layout->gpu_stable, addresses);
  return copier_.begin(stream, gpu_ranges(target_.layout->gpu_volatile, addresses));
}

void Capture::before_update(std::uint64_t stream) {
  if (!is_under_way()) return;
  const std::int64_t since_ns = monotonic_ns();
  blocked_since_ns_.store(since_ns, std::memory_order_relaxed);
  wait_for_host();
  if (gpu_part_.load(std::memory_order_acquire) != GpuPart::kNone && !is_cancelled_.load(std::memory_order_acquire)) {
    if (!is_enqueued_in_time()) {
      mark_cancelled(SkipCause::kCancelled, "the copies from the GPU were not enqueued in time");
    } else if (gpu_part_.load(std::memory_order_acquire) == GpuPart::kEnqueued) {
      if (auto gated = copier_.gate(stream); !gated) {
        // Copied in the meantime: then there is nothing to wait for.
        if (is_under_way()) mark_cancelled(SkipCause::kCancelled, gated.error().message);
      }
    }
  }
  blocked_ns_.fetch_add(static_cast<std::uint64_t>(monotonic_ns() - since_ns), std::memory_order_relaxed);
  blocked_since_ns_.store(0, std::memory_order_relaxed);
}

void Capture::wait_for_host() {
  if (is_host_done_.load(std::memory_order_acquire)) return;
  const std::chrono::nanoseconds limit =
      options_.copy_limit + std::chrono::nanoseconds(target_.layout->content_bytes * 10);
  const auto deadline = std::chrono::steady_clock::now() + limit;
  pool_.help(deadline);
  while (!is_host_done_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < deadline) nap();
  if (is_host_done_.load(std::memory_order_acquire)) return;
  mark_cancelled(SkipCause::kCancelled, "the host's memory was not copied in time");
  // What a thread of the pool is at, it still reads: a batch of 1 MiB at most. It must not read what is freed next.
  const auto last = std::chrono::steady_clock::now() + options_.copy_limit;
  while (!is_host_done_.load(std::memory_order_acquire) && std::chrono::steady_clock::now() < last) nap();
}

bool Capture::is_enqueued_in_time() {
  const auto deadline = std::chrono::steady_clock::now() + options_.enqueue_limit;
  while (gpu_part_.load(std::memory_order_acquire) == GpuPart::kBegun) {
    if (std::chrono::steady_clock::now() >= deadline) return false;
    nap();
  }
  return true;
}

bool Capture::wait_until_ended() {
  if (!is_under_way()) return true;
  wait_for_host();
  const auto deadline = std::chrono::steady_clock::now() + options_.enqueue_limit;
  while (is_under_way() && std::chrono::steady_clock::now() < deadline) nap();
  return !is_under_way();
}

bool Capture::serve() {
  if (!is_under_way()) return false;
  GpuPart part = gpu_part_.load(std::memory_order_acquire);
  if (part == GpuPart::kNone) return false;
  if (part == GpuPart::kBegun) {
    auto enqueued = copier_.enqueue(gpu_stable_);
    if (!enqueued) {
      mark_cancelled(SkipCause::kFailed, enqueued.error().message);
    } else {
      // release: pairs with before_update: a gate comes only behind what was enqueued.
      GpuPart begun = GpuPart::kBegun;
      gpu_part_.compare_exchange_strong(begun, GpuPart::kEnqueued, std::memory_order_acq_rel);
    }
    part = gpu_part_.load(std::memory_order_acquire);
  }
  if (part == GpuPart::kEnqueued) {
    auto copied = copier_.is_copied();
    if (!copied) {
      mark_cancelled(SkipCause::kFailed, copied.error().message);
    } else if (!*copied) {
      return true;
    } else if (gpu_part_.compare_exchange_strong(part, GpuPart::kNone, std::memory_order_acq_rel)) {
      end_part();
      return false;
    }
  }
  // Cancelled: until nothing writes into the slot any more.
  constexpr std::int64_t kPatienceNs = 1'000'000;
  if (!copier_.cancel(monotonic_ns() + kPatienceNs)) return true;
  gpu_part_.store(GpuPart::kNone, std::memory_order_release);
  end_part();
  return false;
}

void Capture::cancel(SkipCause cause, const std::string& text) {
  if (is_under_way()) mark_cancelled(cause, text);
}

void Capture::mark_cancelled(SkipCause cause, std::string text) {
  // As a part of its own, so that the capture does not end before it is said why.
  int left = parts_left_.load(std::memory_order_acquire);
  do {
    if (left == 0) return;
  } while (!parts_left_.compare_exchange_weak(left, left + 1, std::memory_order_acq_rel));
  if (!is_cancelled_.exchange(true, std::memory_order_acq_rel)) {
    cause_ = cause;
    text_ = std::move(text);
  }
  pool_.cancel();
  GpuPart part = gpu_part_.load(std::memory_order_acquire);
  while (part == GpuPart::kBegun || part == GpuPart::kEnqueued) {
    if (gpu_part_.compare_exchange_weak(part, GpuPart::kCancelled, std::memory_order_acq_rel)) {
      wake_helper_();
      break;
    }
  }
  end_part();
}

void Capture::end_part() {
  // acq_rel: the last one has behind it what all others wrote.
  if (parts_left_.fetch_sub(1, std::memory_order_acq_rel) == 1) end();
}

void Capture::end() {
  CaptureEnd ended;
  ended.label = target_.label;
  ended.slot = target_.slot;
  ended.is_complete = !is_cancelled_.load(std::memory_order_acquire);
  ended.bytes = target_.layout->content_bytes;
  const std::int64_t now_ns = monotonic_ns();
  ended.copy_ns = static_cast<std::uint64_t>(now_ns - begun_ns_);
  const std::int64_t since_ns = blocked_since_ns_.load(std::memory_order_relaxed);
  ended.blocked_ns = blocked_ns_.load(std::memory_order_relaxed) +
                     (since_ns == 0 ? 0 : static_cast<std::uint64_t>(std::max<std::int64_t>(0, now_ns - since_ns)));
  if (ended.is_complete) {
    // The last of all; release: pairs with readers' acquire.
    target_.mapping->header().generation.store(generation_ + 1, std::memory_order_release);
  } else {
    ended.cause = cause_;
    ended.text = text_;
  }
  // First: what is said of this capture comes before what is said of the next one.
  on_end_(std::move(ended));
  is_under_way_.store(false, std::memory_order_release);
}

}  // namespace smon_rt
