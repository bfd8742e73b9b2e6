#include "cuda/event_pool.h"

#include <algorithm>
#include <utility>

namespace smon_rt::cuda {
namespace {

constexpr std::uint32_t low_half(std::uint64_t word) {
  return static_cast<std::uint32_t>(word);
}
constexpr std::uint32_t high_half(std::uint64_t word) {
  return static_cast<std::uint32_t>(word >> 32);
}
constexpr std::uint64_t join(std::uint32_t high, std::uint32_t low) {
  return std::uint64_t{high} << 32 | low;
}

}  // namespace

EventPool::EventPool(Handle context, Device device, std::size_t event_count, std::string device_uuid)
    : context_(context),
      device_(device),
      device_uuid_(std::move(device_uuid)),
      size_(std::min(event_count, kMaxEvents)),
      events_(std::make_unique<Event[]>(size_)) {
  for (std::size_t i = size_; i-- > 0;) put_back(static_cast<std::uint32_t>(i));
}

std::optional<std::uint32_t> EventPool::take() noexcept {
  // acquire: pairs with the release in put_back(): the event's next one is there.
  std::uint64_t top = free_.load(std::memory_order_acquire);
  while (low_half(top) != 0) {
    const std::uint32_t index = low_half(top) - 1;
    const std::uint32_t next = events_[index].next.load(std::memory_order_relaxed);
    if (free_.compare_exchange_weak(top, join(high_half(top) + 1, next), std::memory_order_acquire)) return index;
  }
  return std::nullopt;
}

void EventPool::put_back(std::uint32_t index) noexcept {
  std::uint64_t top = free_.load(std::memory_order_relaxed);
  do {
    events_[index].next.store(low_half(top), std::memory_order_relaxed);
    // release: pairs with the acquire in take().
  } while (!free_.compare_exchange_weak(top, join(high_half(top) + 1, index + 1), std::memory_order_release,
                                        std::memory_order_relaxed));
}

EventPool::Name EventPool::put_in_use(std::uint32_t index) noexcept {
  std::atomic<std::uint64_t>& state = events_[index].state;
  // Never 0, also after four thousand million uses: 0 is what no name has.
  const std::uint32_t generation = std::max(high_half(state.load(std::memory_order_relaxed)) + 1, std::uint32_t{1});
  // release: pairs with the acquire of whoever asks for the event by its name.
  state.store(join(generation, 1), std::memory_order_release);
  return {index, generation};
}

bool EventPool::is_in_use(Name name) const noexcept {
  if (name.index >= size_ || name.generation == 0) return false;
  const std::uint64_t state = events_[name.index].state.load(std::memory_order_acquire);
  return high_half(state) == name.generation && low_half(state) != 0;
}

bool EventPool::add_owners(Name name, int count, std::uint32_t* left) noexcept {
  if (name.index >= size_ || name.generation == 0) return false;
  std::atomic<std::uint64_t>& state = events_[name.index].state;
  std::uint64_t now = state.load(std::memory_order_acquire);
  do {
    if (high_half(now) != name.generation || low_half(now) == 0) return false;
    *left = low_half(now) + static_cast<std::uint32_t>(count);
  } while (!state.compare_exchange_weak(now, join(name.generation, *left), std::memory_order_acq_rel));
  return true;
}

bool EventPool::retain(Name name) noexcept {
  std::uint32_t owners;
  return add_owners(name, 1, &owners);
}

void EventPool::release(Name name) noexcept {
  std::uint32_t owners;
  if (add_owners(name, -1, &owners) && owners == 0) put_back(name.index);
}

}  // namespace smon_rt::cuda
