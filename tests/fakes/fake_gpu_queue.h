#pragma once

#include <cstdint>
#include <deque>

namespace smon_rt {

/// What a stream of the fake GPU has to do, one thing after the other, on the host's monotonic clock. Nothing runs:
/// when each thing is done follows from when it was launched and from what it waits for, other processes included, and
/// comes out as soon as that is known, mostly ahead of time.
///
/// Threading: the caller locks.
class FakeGpuQueue {
 public:
  /// When an event of the stream happens: nothing until that is known.
  struct Moment {
    bool is_known = false;
    std::int64_t host_ns = 0;
  };

  /// Takes the GPU so long.
  void launch(std::int64_t now_ns, std::int64_t duration_ns) { add({Kind::kWork, now_ns, duration_ns}); }
  /// Once the stream gets here, the slot, which other processes see, holds when `delay_ns` later is.
  void signal(std::int64_t now_ns, std::int64_t* slot, std::int64_t delay_ns) {
    add({Kind::kSignal, now_ns, delay_ns, slot});
  }
  /// Until that time has come.
  void wait(std::int64_t now_ns, std::int64_t* slot) { add({Kind::kWait, now_ns, 0, slot}); }
  /// When the stream gets here. The moment outlives the queue.
  void record(std::int64_t now_ns, Moment* moment) {
    *moment = {};
    add({Kind::kEvent, now_ns, 0, nullptr, moment});
  }
  /// An event that is recorded anew happens once.
  void forget(const Moment* moment);

  /// Works out what can be known now.
  void advance(std::int64_t now_ns);
  bool is_done(std::int64_t now_ns) const { return items_.empty() && busy_until_ns_ <= now_ns; }

 private:
  enum class Kind : std::uint8_t { kWork, kSignal, kWait, kEvent };
  struct Item {
    Kind kind = Kind::kWork;
    std::int64_t launched_ns = 0;
    std::int64_t duration_ns = 0;
    std::int64_t* slot = nullptr;
    Moment* moment = nullptr;
    std::int64_t looked_ns = 0;  // when the slot was still empty
  };
  void add(const Item& item) { items_.push_back(item); }
  bool step(Item& item, std::int64_t now_ns);

  std::deque<Item> items_;
  std::int64_t busy_until_ns_ = 0;
};

}  // namespace smon_rt
