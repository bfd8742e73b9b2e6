#include "recorder_threads.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "record/recorder.h"

namespace smon_rt {
namespace {

using testing::every_step_sampled;
using testing::make_recorder;
using testing::RingReader;
using testing::run_producers;

TEST(RecorderThreads, EverySpanOfFourThreadsArrivesInOrder) {
  const auto run = run_producers(4, 200'000, /*is_paced=*/true);
  EXPECT_EQ(run.dropped, 0u);
  EXPECT_EQ(run.read, run.begun);
}

TEST(RecorderThreads, WhatASlowReaderMissesIsCountedExactly) {
  const auto run = run_producers(4, 200'000, /*is_paced=*/false);
  EXPECT_EQ(run.read + run.dropped, run.begun);
}

/// Threads that all stay until the test lets them go.
class Crowd {
 public:
  template <typename Work>
  void add(Work work) {
    threads_.emplace_back([this, work] {
      work();
      std::unique_lock lock(mutex_);
      ++ready_;
      changed_.notify_all();
      changed_.wait(lock, [&] { return is_over_; });
    });
  }
  void wait_until_ready() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ready_ == threads_.size(); });
  }
  void leave() {
    {
      const std::lock_guard lock(mutex_);
      is_over_ = true;
    }
    changed_.notify_all();
    for (auto& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t ready_ = 0;
  bool is_over_ = false;
  std::vector<std::thread> threads_;
};

TEST(RecorderThreads, MoreThreadsThanRingsAreCountedAndTheirSpansDropped) {
  RecorderOptions options = every_step_sampled();
  options.arena.sizes.threads = 8;
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  Crowd crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.add([&] {
      for (int k = 0; k < 10; ++k) recorder->end(recorder->begin(Kind::kUser));
    });
  }
  crowd.wait_until_ready();
  EXPECT_EQ(recorder->header().losses.threads_without_ring.load(), 13u) << "one of the 8 waits for the main thread";
  EXPECT_EQ(recorder->dropped_spans(), 130u);
  EXPECT_EQ(reader.take().size(), 70u);
  crowd.leave();
}

TEST(RecorderThreads, TheMainThreadHasItsRingHoweverLateItComes) {
  ASSERT_EQ(current_thread_id(), ::getpid());
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  Crowd crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.add([&] { recorder->end(recorder->begin(Kind::kUser)); });
  }
  crowd.wait_until_ready();
  EXPECT_GT(recorder->header().losses.threads_without_ring.load(), 0u);
  reader.take();
  recorder->end(recorder->begin(Kind::kOptimizer));
  const auto taken = reader.take_entries();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].span.kind, Kind::kOptimizer);
  EXPECT_EQ(recorder->arena().threads()[0].ring_id, taken[0].ring_id) << "the large one";
  crowd.leave();
}

TEST(RecorderThreads, SpansThatAThreadLeftOpenAreNotCurrentInTheNextOne) {
  RecorderOptions options = every_step_sampled();
  options.arena.sizes.threads = options.arena.sizes.large_threads = 1;
  options.arena.sizes.large_slots = 8;
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  std::vector<Token> left;
  std::thread([&] {
    for (int i = 0; i < 3; ++i) left.push_back(recorder->begin(Kind::kUser));
    recorder->end(left[1]);
  }).join();
  reader.take();
  std::thread([&] {
    const Token own = recorder->begin(Kind::kGc);
    const Token inner = recorder->begin(Kind::kEval);
    ASSERT_NE(inner, 0u);
    EXPECT_EQ(recorder->current(), inner);
    recorder->end(left[2]);  // in between: it has the same table now
    EXPECT_EQ(recorder->current(), inner);
    recorder->end(own);
    EXPECT_EQ(recorder->current(), inner);
    recorder->end(inner);
    EXPECT_EQ(recorder->current(), 0u) << "not the one that is left";
    std::vector<Token> open;
    for (int i = 0; i < 8; ++i) open.push_back(recorder->begin(Kind::kUser));
    EXPECT_EQ(std::count(open.begin(), open.end(), Token{0}), 1) << "left[0] still has its slot";
    recorder->end(left[0]);
    EXPECT_NE(recorder->begin(Kind::kUser), 0u);
  }).join();
  EXPECT_EQ(recorder->header().losses.stale_tokens.load() + recorder->header().losses.foreign_tokens.load(), 0u);
}

TEST(RecorderThreads, AThreadWithoutARingGetsOneOnceAnotherIsGone) {
  RecorderOptions options = every_step_sampled();
  options.arena.sizes.threads = 1;
  options.arena.sizes.large_threads = 1;
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  Crowd first;
  first.add([&] { recorder->end(recorder->begin(Kind::kUser)); });
  first.wait_until_ready();
  EXPECT_EQ(recorder->begin(Kind::kUser), 0u);
  first.leave();
  reader.take();
  std::uint32_t tries = 0;
  Token token = 0;
  while (token == 0 && tries < 2 * ThreadRegistry::kRetryEvery) {
    token = recorder->begin(Kind::kUser);
    ++tries;
  }
  EXPECT_NE(token, 0u);
  EXPECT_EQ(recorder->header().losses.threads_without_ring.load(), 1u);
}

TEST(RecorderThreads, AThousandThreadsThatComeAndGoShareTheRings) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  std::size_t taken = 0;
  std::vector<std::uint32_t> ring_ids;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 10; ++i) {
      threads.emplace_back([&] {
        for (int k = 0; k < 20; ++k) recorder->end(recorder->begin(Kind::kUser));
      });
    }
    for (auto& thread : threads) thread.join();
    for (const auto& entry : reader.take_entries()) {
      ++taken;
      if (ring_ids.empty() || ring_ids.back() != entry.ring_id) ring_ids.push_back(entry.ring_id);
    }
  }
  EXPECT_EQ(taken, 20'000u);
  EXPECT_EQ(recorder->dropped_spans(), 0u);
  EXPECT_EQ(recorder->recorded_spans(), 20'000u);
  std::sort(ring_ids.begin(), ring_ids.end());
  EXPECT_EQ(std::unique(ring_ids.begin(), ring_ids.end()) - ring_ids.begin(), 1000) << "no ring id is used twice";
}

TEST(RecorderThreads, SpansOfAThreadThatIsGoneAreReadAndItsRecordIsFreeOnlyThen) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  std::thread([&] { recorder->end(recorder->begin(Kind::kUser)); }).join();
  const auto count = [&](ThreadState state) {
    int found = 0;
    for (const ThreadRecord& record : recorder->arena().threads()) found += record.state.load() == state ? 1 : 0;
    return found;
  };
  EXPECT_EQ(count(ThreadState::kExited), 1);
  EXPECT_EQ(reader.take().size(), 1u);
  EXPECT_EQ(count(ThreadState::kExited), 0);
  EXPECT_EQ(count(ThreadState::kLive), 0);
}

TEST(RecorderThreads, ASpanOfAThreadThatIsGoneCanStillBeEnded) {
  RecorderOptions options = every_step_sampled();
  options.arena.sizes.threads = 2;
  options.arena.sizes.large_threads = 1;
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  Token left_open = 0;
  std::thread([&] { left_open = recorder->begin(Kind::kCollective); }).join();
  reader.take();
  // Its record goes to the next thread, which must leave the open slot alone.
  std::vector<Token> open;
  std::thread([&] {
    for (int i = 0; i < 2000; ++i) {
      const Token token = recorder->begin(Kind::kUser);
      if (token != 0) open.push_back(token);
    }
    for (const Token token : open) recorder->end(token);
  }).join();
  EXPECT_EQ(std::count(open.begin(), open.end(), left_open), 0);
  recorder->end(left_open);
  EXPECT_EQ(recorder->header().losses.stale_tokens.load(), 0u);
  bool found = false;
  for (const Span& span : reader.take()) found = found || span.kind == Kind::kCollective;
  EXPECT_TRUE(found);
}

TEST(RecorderThreads, TheMainThreadAndAutogradGetTheLargeRingsThatWaitForThem) {
  const auto recorder = make_recorder(every_step_sampled());
  const auto capacity_of = [&](std::int32_t thread_id) -> std::uint32_t {
    for (const ThreadRecord& record : recorder->arena().threads()) {
      if (record.state.load() == ThreadState::kLive && record.thread_id == thread_id) return record.ring_capacity;
    }
    return 0;
  };
  Crowd crowd;
  for (int i = 0; i < 10; ++i) {
    crowd.add([&] { recorder->end(recorder->begin(Kind::kUser)); });
  }
  crowd.wait_until_ready();
  std::atomic<std::int32_t> autograd_id{0};
  Crowd autograd;
  autograd.add([&] {
    ::pthread_setname_np(::pthread_self(), "pt_autograd_0");
    autograd_id = current_thread_id();
    recorder->end(recorder->begin(Kind::kBackwardCompute));
  });
  autograd.wait_until_ready();
  recorder->end(recorder->begin(Kind::kUser));
  const ArenaSizes& sizes = recorder->arena().sizes();
  EXPECT_EQ(capacity_of(current_thread_id()), sizes.large_ring_spans);
  EXPECT_EQ(capacity_of(autograd_id), sizes.large_ring_spans);
  autograd.leave();
  crowd.leave();
}

TEST(RecorderThreads, LaunchesOfOneKindOnSeveralThreadsHaveDifferentNumbers) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  // From the second thread on they are counted atomically; the meeting itself is kept apart here.
  recorder->end(recorder->begin(Kind::kBackwardCompute));
  std::thread([&] { recorder->end(recorder->begin(Kind::kBackwardCompute)); }).join();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 400; ++k) recorder->end(recorder->begin(Kind::kBackwardCompute));
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<int> seen(1602, 0);
  for (const Span& span : reader.take()) ++seen.at(span.op_index);
  for (const int times : seen) ASSERT_EQ(times, 1);
}

TEST(RecorderThreads, AnotherThreadReadsOpenSpansWholeOrNotAtAll) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  std::atomic<bool> is_done{false};
  std::thread producer([&] {
    for (int i = 0; i < 200'000; ++i) {
      const auto number = static_cast<std::int16_t>(i % 30'000);
      const Token token = recorder->begin(Kind::kUser, {.microbatch = number, .chunk = number, .peer = number});
      recorder->annotate(token, {.payload_bytes = static_cast<std::uint64_t>(number) + 1});
      recorder->end(token);
    }
    is_done = true;
  });
  std::size_t seen = 0;
  while (!is_done.load()) {
    for (const Span& span : reader.open_spans()) {
      ++seen;
      ASSERT_EQ(span.microbatch, span.chunk);
      ASSERT_EQ(span.microbatch, span.peer);
      if (span.payload_bytes() != 0) {
        ASSERT_EQ(span.payload_bytes(), static_cast<std::uint64_t>(span.peer) + 1);
      }
    }
    reader.take();
  }
  producer.join();
  RecordProperty("open_spans_seen", static_cast<int>(seen));
}

TEST(RecorderThreads, StartAndStopAgainGivesEveryThreadANewRing) {
  std::atomic<Recorder*> current{nullptr};
  std::atomic<int> turn{0};
  std::atomic<int> done{0};
  std::thread worker([&] {
    for (int i = 1; i <= 20; ++i) {
      while (turn.load() < i) std::this_thread::yield();
      current.load()->end(current.load()->begin(Kind::kUser));
      ++done;
    }
  });
  for (int i = 1; i <= 20; ++i) {
    const auto recorder = make_recorder(every_step_sampled());
    RingReader reader(recorder->arena());
    current = recorder.get();
    ++turn;
    while (done.load() < i) std::this_thread::yield();
    EXPECT_EQ(reader.take().size(), 1u);
  }
  worker.join();
}

pthread_key_t g_key_of_the_job;
std::atomic<int> g_foreign_values{0};

/// Leaves the process with 0 if the recorder kept its hands off the first key, which is the job's.
void record_without_keys() {
  static int value = 0;
  pthread_key_create(&g_key_of_the_job, [](void* pointer) { g_foreign_values += pointer != &value ? 1 : 0; });
  pthread_key_t key{};
  while (pthread_key_create(&key, nullptr) == 0) {
  }
  const auto recorder = make_recorder(every_step_sampled());
  for (int i = 0; i < 100; ++i) {
    std::thread([&] {
      pthread_setspecific(g_key_of_the_job, &value);
      recorder->end(recorder->begin(Kind::kUser));
      g_foreign_values += pthread_getspecific(g_key_of_the_job) != &value ? 1 : 0;
    }).join();
  }
  const bool is_counted = recorder->recorded_spans() + recorder->dropped_spans() == 100;
  std::_Exit(g_foreign_values.load() == 0 && recorder->recorded_spans() > 10 && is_counted ? 0 : 1);
}

// In a process of its own: the recorder takes its key once and for all.
TEST(RecorderThreadsDeathTest, AProcessWithoutKeysKeepsItsOwn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(record_without_keys(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace smon_rt
