#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "record/open_slot.h"
#include "record/recorder.h"

namespace smon_rt::testing {

/// A clock that moves by one tick with each reading, and by as much as a test wants in between.
class CountingClock {
 public:
  CountingClock()
      : clock_(Clock::Source{
            .read_ticks = [](void* self) { return static_cast<CountingClock*>(self)->next(); },
            .read =
                [](void* self) {
                  const std::int64_t now = static_cast<CountingClock*>(self)->next();
                  return ClockReading{now, now, now, 0};
                },
            .context = this,
        }) {}

  const Clock& clock() const { return clock_; }
  std::int64_t now() const { return now_.load(); }
  void advance(std::int64_t ticks) { now_ += ticks; }

 private:
  std::int64_t next() { return ++now_; }

  std::atomic<std::int64_t> now_{1000};
  Clock clock_;
};

/// A run id that no other test of this machine has at the time.
inline std::string unique_run_id() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string("test-") + std::to_string(::getpid()) + "-" + (test == nullptr ? "main" : test->name());
}

inline RecorderOptions every_step_sampled() {
  RecorderOptions options;
  options.arena.run_id = unique_run_id();
  options.sampling = {.sample_ratio = 1, .warmup_steps = 0, .always_steps = 0};
  return options;
}

inline RecorderOptions no_step_sampled() {
  RecorderOptions options = every_step_sampled();
  options.sampling.sample_ratio = 0;
  return options;
}

inline std::unique_ptr<Recorder> make_recorder(const RecorderOptions& options) {
  auto made = Recorder::create(options);
  if (!made) {
    ADD_FAILURE() << made.error().message;
    return nullptr;
  }
  (*made)->resume();
  return std::move(*made);
}

/// The reading end of all rings, as the drain thread has it.
class RingReader {
 public:
  explicit RingReader(Arena& arena) : arena_(arena) {}

  /// A span and where it came from.
  struct Entry {
    Span span;
    std::uint32_t ring_id;
    std::uint64_t index;
  };

  /// Takes all that is there, and gives the records of threads that ended back.
  std::vector<Entry> take_entries() {
    std::vector<Entry> taken;
    for (std::uint32_t i = 0; i < arena_.threads().size(); ++i) {
      ThreadRecord& record = arena_.threads()[i];
      // acquire: pairs with the release that attaches the thread, or marks its end.
      const ThreadState state = record.state.load(std::memory_order_acquire);
      if (state == ThreadState::kFree) continue;
      const auto ring = arena_.ring(i);
      const std::uint64_t write = record.write_index.load(std::memory_order_acquire);  // pairs with the push
      std::uint64_t read = record.read_index.load(std::memory_order_relaxed);
      for (; read < write; ++read) taken.push_back({ring[read % ring.size()], record.ring_id, read});
      record.read_index.store(read, std::memory_order_release);  // pairs with the producer's acquire
      if (state == ThreadState::kExited) record.state.store(ThreadState::kFree, std::memory_order_release);
    }
    return taken;
  }

  std::vector<Span> take() {
    std::vector<Span> spans;
    for (const Entry& entry : take_entries()) spans.push_back(entry.span);
    return spans;
  }

  /// The open spans of all threads.
  std::vector<Span> open_spans() {
    std::vector<Span> open;
    for (std::uint32_t i = 0; i < arena_.threads().size(); ++i) {
      for (const OpenSlot& slot : arena_.slots(i)) {
        Span span;
        if (read_open_slot(slot, &span)) open.push_back(span);
      }
    }
    return open;
  }

 private:
  Arena& arena_;
};

inline std::uint64_t dropped(Recorder& recorder, Kind kind) {
  return recorder.header().losses.dropped_by_kind[static_cast<std::size_t>(kind)].load();
}

inline std::uint64_t stale(Recorder& recorder) {
  return recorder.header().losses.stale_tokens.load();
}

}  // namespace smon_rt::testing
