#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <thread>
#include <vector>

#include "recorder_fixture.h"

namespace smon_rt::testing {

struct ProducersRun {
  std::uint64_t begun = 0;
  std::uint64_t read = 0;
  std::uint64_t dropped = 0;
};

/// Several threads record as fast as they can (or, paced, never more than half a ring ahead of the reader) while one
/// drains. Checks order, and that indices and what spans carry fit together; counts the rest.
inline ProducersRun run_producers(int thread_count, std::uint64_t spans_per_thread, bool is_paced) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  std::vector<std::atomic<std::uint64_t>> read_of(static_cast<std::size_t>(thread_count));
  std::atomic<int> running{thread_count};
  std::vector<std::thread> producers;
  for (int t = 0; t < thread_count; ++t) {
    producers.emplace_back([&, t] {
      constexpr std::uint64_t kHalfRing = 256;
      for (std::uint64_t i = 0; i < spans_per_thread; ++i) {
        while (is_paced && i - read_of[static_cast<std::size_t>(t)].load() >= kHalfRing) std::this_thread::yield();
        recorder->end(recorder->begin(Kind::kUser, {.microbatch = static_cast<std::int16_t>(t), .payload_bytes = i}));
      }
      --running;
    });
  }
  ProducersRun run;
  run.begun = static_cast<std::uint64_t>(thread_count) * spans_per_thread;
  std::map<std::uint32_t, std::uint64_t> next_index;
  std::vector<std::int64_t> last_payload(static_cast<std::size_t>(thread_count), -1);
  bool is_last = false;
  while (!is_last) {
    is_last = running.load() == 0;
    for (const auto& [span, ring_id, index] : reader.take_entries()) {
      const auto producer = static_cast<std::size_t>(span.microbatch);
      EXPECT_EQ(index, next_index[ring_id]) << "a ring's indices have no gap";
      EXPECT_GT(static_cast<std::int64_t>(span.payload_bytes()), last_payload.at(producer)) << "in order";
      EXPECT_LE(span.start, span.end);
      next_index[ring_id] = index + 1;
      last_payload[producer] = static_cast<std::int64_t>(span.payload_bytes());
      read_of[producer].store(span.payload_bytes() + 1);
      ++run.read;
      if (::testing::Test::HasFailure()) is_last = true;
    }
  }
  if (::testing::Test::HasFailure()) {
    for (auto& read : read_of) read.store(spans_per_thread);  // let the producers go
  }
  for (auto& producer : producers) producer.join();
  run.dropped = recorder->dropped_spans();
  EXPECT_EQ(recorder->recorded_spans(), run.read);
  return run;
}

}  // namespace smon_rt::testing
