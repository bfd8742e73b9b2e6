#include "fakes/fake_gpu_queue.h"

#include <algorithm>
#include <atomic>

namespace smon_rt {

void FakeGpuQueue::advance(std::int64_t now_ns) {
  while (!items_.empty() && step(items_.front(), now_ns)) items_.pop_front();
}

void FakeGpuQueue::forget(const Moment* moment) {
  std::erase_if(items_, [moment](const Item& item) { return item.moment == moment; });
}

/// False: nobody knows yet.
bool FakeGpuQueue::step(Item& item, std::int64_t now_ns) {
  std::int64_t at_ns = std::max(busy_until_ns_, item.launched_ns);
  switch (item.kind) {
    case Kind::kWork:
      busy_until_ns_ = at_ns + item.duration_ns;
      break;
    case Kind::kSignal:
      // Never in the past: somebody may have looked, and the time of its event is not to be before that look.
      std::atomic_ref(*item.slot).store(std::max(at_ns + item.duration_ns, now_ns), std::memory_order_release);
      break;
    case Kind::kWait: {
      const std::int64_t arrived_ns = std::atomic_ref(*item.slot).load(std::memory_order_acquire);
      if (arrived_ns == 0) {
        item.looked_ns = now_ns;
        return false;
      }
      busy_until_ns_ = std::max({at_ns, arrived_ns, item.looked_ns});
      break;
    }
    case Kind::kEvent:
      *item.moment = {true, at_ns};
      break;
  }
  return true;
}

}  // namespace smon_rt
