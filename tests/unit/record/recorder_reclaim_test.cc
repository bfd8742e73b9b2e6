// Spans that are begun and never ended must not blind their thread for good: slots of earlier steps are used again.

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "record/recorder.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::every_step_sampled;
using testing::make_recorder;
using testing::no_step_sampled;
using testing::RingReader;
using testing::stale;

std::uint64_t reclaimed(Recorder& recorder) {
  return recorder.header().more_losses.reclaimed_spans.load();
}

TEST(Reclaim, AThreadThatNeverEndsItsSpansGoesOnRecording) {
  for (const auto& options : {every_step_sampled(), no_step_sampled()}) {
    const auto recorder = make_recorder(options);
    RingReader reader(recorder->arena());
    const std::uint32_t slots = recorder->arena().sizes().large_slots;
    EXPECT_EQ(recorder->leaking_kind(), std::nullopt);
    std::uint64_t leaked = 0;
    for (int step = 0; step < 100; ++step) {
      recorder->step_begin(step);
      for (int i = 0; i < 100; ++i, ++leaked) ASSERT_NE(recorder->begin(Kind::kForwardSend), 0u) << step << " " << i;
      const Token token = recorder->begin(Kind::kOptimizer);
      ASSERT_NE(token, 0u) << step;
      recorder->end(token);
      reader.take();
    }
    EXPECT_EQ(recorder->dropped_spans() + stale(*recorder), 0u);
    EXPECT_GE(reclaimed(*recorder), leaked - slots);
    EXPECT_LE(reclaimed(*recorder), leaked);
    EXPECT_EQ(recorder->leaking_kind(), Kind::kForwardSend);
  }
}

TEST(Reclaim, WhatEnclosesEverythingSurvivesWhateverLeaksInside) {
  for (const Kind leaking : {Kind::kBackwardCompute, Kind::kUser}) {
    const auto recorder = make_recorder(every_step_sampled());
    RingReader reader(recorder->arena());
    recorder->step_begin(0);
    const std::vector<Token> outer{recorder->begin(Kind::kUser), recorder->begin(Kind::kEval),
                                   recorder->begin(Kind::kDataLoading)};
    Token late = 0;
    for (int step = 1; step < 60; ++step) {
      recorder->step_begin(step);
      for (int i = 0; i < 90; ++i) ASSERT_NE(recorder->begin(leaking), 0u);
      if (step == 5) late = recorder->begin(Kind::kEval);  // long, but not among the first
      reader.take();
    }
    EXPECT_GT(reclaimed(*recorder), 0u);
    for (const Token token : outer) recorder->end(token);
    EXPECT_EQ(stale(*recorder), 0u);
    recorder->end(late);
    if (leaking == Kind::kBackwardCompute) {
      EXPECT_EQ(stale(*recorder), 0u) << "kinds that last go last";
    }
  }
}

TEST(Reclaim, NothingOfThisStepIsTakenHoweverManyThereAre) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint32_t slots = recorder->arena().sizes().large_slots;
  recorder->step_begin(3);
  std::vector<Token> open;
  for (std::uint32_t i = 0; i < slots; ++i) open.push_back(recorder->begin(Kind::kUser));
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(recorder->begin(Kind::kGc), 0u);
  EXPECT_EQ(reclaimed(*recorder), 0u);
  EXPECT_EQ(testing::dropped(*recorder, Kind::kGc), 1000u);
  for (const Token token : open) recorder->end(token);
  EXPECT_EQ(stale(*recorder), 0u);
}

TEST(Reclaim, ALateEndIsStaleAndLeavesTheSlotsNewSpanAlone) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint32_t slots = recorder->arena().sizes().large_slots;
  recorder->step_begin(0);
  std::vector<Token> leaked;
  for (std::uint32_t i = 0; i < slots; ++i) leaked.push_back(recorder->begin(Kind::kForwardRecv));
  recorder->step_begin(1);
  std::vector<Token> young;
  for (int i = 0; i < 50; ++i) young.push_back(recorder->begin(Kind::kOptimizer));
  reader.take();
  const std::uint64_t count = reclaimed(*recorder);
  EXPECT_EQ(count, slots / 4) << "a quarter at once";
  for (const Token token : leaked) recorder->end(token);
  EXPECT_EQ(stale(*recorder), count);
  EXPECT_EQ(recorder->current(), young.back());
  std::size_t ended = reader.take().size();
  EXPECT_EQ(ended, slots - count);
  for (const Token token : young) recorder->end(token);
  ended = reader.take().size();
  EXPECT_EQ(ended, young.size());
  EXPECT_EQ(stale(*recorder), count);
}

/// Against a model: of all spans that got a token, each is either ended once or reclaimed, and the model knows which
/// may have been: those of earlier steps.
TEST(Reclaim, EachTokenEndsOnceOrWasGivenUpWhateverTheOrder) {
  const auto recorder = make_recorder(no_step_sampled());
  std::mt19937 random(23);
  std::map<Token, int> open;  // token → step
  std::set<Token> ever;
  std::uint64_t known_stale = 0;
  int step = 0;
  recorder->step_begin(step);
  for (int i = 0; i < 300'000; ++i) {
    if (random() % 400 == 0) recorder->step_begin(++step);
    if (random() % 100 < 75) {  // more begin than end: the table is full again and again
      const auto kind = static_cast<Kind>(1 + random() % 22);
      if (is_communication(kind)) continue;
      const Token token = recorder->begin(kind);
      if (token == 0) continue;
      ASSERT_TRUE(ever.insert(token).second);
      open[token] = step;
    } else if (!open.empty()) {
      auto at = open.lower_bound(*ever.begin() + random() % (*ever.rbegin() - *ever.begin() + 1));
      if (at == open.end()) at = open.begin();
      const std::uint64_t before = stale(*recorder);
      recorder->end(at->first);
      if (stale(*recorder) != before) {
        ASSERT_LT(at->second, step) << "nothing of this step is given up";
        ++known_stale;
      }
      open.erase(at);
    }
  }
  for (const auto& [token, begun_in] : open) recorder->end(token);
  EXPECT_GT(reclaimed(*recorder), 0u);
  EXPECT_EQ(stale(*recorder), reclaimed(*recorder)) << "each token was ended once: those that failed were given up";
  EXPECT_LE(known_stale, stale(*recorder));
  EXPECT_EQ(recorder->current(), 0u);
}

TEST(Reclaim, OwnersGiveUpWhileOtherThreadsEndAndReadersLook) {
  RecorderOptions options = every_step_sampled();
  options.arena.sizes.large_slots = 64;
  const auto recorder = make_recorder(options);
  constexpr int kThreads = 4;
  constexpr int kSpans = 60'000;
  std::array<std::atomic<Token>, 64> handed{};
  std::atomic<std::uint64_t> asked{0};
  std::atomic<bool> is_done{false};
  std::uint64_t taken = 0;
  std::thread reader([&] {
    RingReader rings(recorder->arena());
    for (int step = 1; !is_done.load(); ++step) {
      recorder->step_begin(step);
      taken += rings.take().size();
      for (const Span& span : rings.open_spans()) ASSERT_LT(static_cast<std::size_t>(span.kind), kKindCount);
    }
  });
  std::vector<std::thread> threads;
  for (int number = 0; number < kThreads; ++number) {
    threads.emplace_back([&, number] {
      std::mt19937 random(static_cast<unsigned>(number));
      for (int i = 0; i < kSpans;) {
        const Token token = recorder->begin(Kind::kForwardCompute);
        if (token == 0) {  // until the next step
          std::this_thread::yield();
          continue;
        }
        ++i;
        // Whoever finds it next ends it, late or never.
        const Token other = handed[random() % handed.size()].exchange(random() % 8 == 0 ? 0 : token);
        if (other != 0) {
          recorder->end(other);
          ++asked;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  is_done = true;
  reader.join();
  for (std::atomic<Token>& token : handed) {
    if (token.load() == 0) continue;
    recorder->end(token.load());
    ++asked;
  }
  EXPECT_GT(reclaimed(*recorder), 0u);
  EXPECT_LE(stale(*recorder), reclaimed(*recorder));
  std::uint64_t steps = 0;
  for (const Span& span : RingReader(recorder->arena()).take()) (span.kind == Kind::kStep ? steps : taken) += 1;
  // What was asked to end and was not stale is in a ring, or was dropped there and counted; so are steps.
  EXPECT_LE(asked.load() - stale(*recorder), taken + recorder->dropped_spans());
  EXPECT_EQ(recorder->header().losses.foreign_tokens.load(), 0u);
}

}  // namespace
}  // namespace smon_rt
