#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "record/recorder.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::dropped;
using testing::every_step_sampled;
using testing::make_recorder;
using testing::no_step_sampled;
using testing::RingReader;
using testing::stale;

std::uint64_t foreign(Recorder& recorder) {
  return recorder.header().losses.foreign_tokens.load();
}

TEST(Tokens, ASecondEndIsCountedAndIgnored) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const Token token = recorder->begin(Kind::kUser);
  recorder->end(token);
  recorder->end(token);
  recorder->annotate(token, {.microbatch = 1});
  EXPECT_EQ(reader.take().size(), 1u);
  EXPECT_EQ(stale(*recorder), 2u);
}

TEST(Tokens, ATokenOfASlotThatIsUsedAgainIsStale) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const Token old = recorder->begin(Kind::kUser);
  recorder->end(old);
  const Token young = recorder->begin(Kind::kUser);
  EXPECT_EQ(old >> 32, young >> 32) << "the same slot, another generation";
  EXPECT_NE(old, young);
  recorder->end(old);
  EXPECT_EQ(stale(*recorder), 1u);
  EXPECT_EQ(recorder->current(), young);
  recorder->end(young);
  EXPECT_EQ(reader.take().size(), 2u);
}

TEST(Tokens, ZeroEndsNothingAndIsNotCounted) {
  const auto recorder = make_recorder(every_step_sampled());
  recorder->end(0);
  recorder->annotate(0, {});
  EXPECT_EQ(stale(*recorder) + foreign(*recorder), 0u);
}

TEST(Tokens, GarbageIsCountedAndNeverFollowed) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const Token open = recorder->begin(Kind::kUser);
  std::mt19937_64 random(11);
  constexpr int kTokens = 200'000;
  int tried = 0;
  for (int i = 0; i < kTokens; ++i) {
    // Half of them differ from a true token in a few bits only.
    Token token = i % 2 == 0 ? random() : open ^ (Token{1} << random() % 64) ^ (Token{1} << random() % 64);
    if (token == open || token == 0) continue;
    ++tried;
    recorder->end(token);
  }
  EXPECT_EQ(stale(*recorder) + foreign(*recorder), static_cast<std::uint64_t>(tried));
  EXPECT_GT(foreign(*recorder), 0u);
  EXPECT_GT(stale(*recorder), 0u);
  EXPECT_EQ(recorder->current(), open);
  EXPECT_TRUE(reader.take().empty());
}

TEST(Tokens, ATokenOfTheRecorderBeforeIsForeign) {
  auto first = make_recorder(every_step_sampled());
  const Token old = first->begin(Kind::kUser);
  first.reset();
  const auto second = make_recorder(every_step_sampled());
  second->end(old);
  EXPECT_EQ(foreign(*second), 1u);
  EXPECT_EQ(stale(*second), 0u);
}

TEST(Tokens, OneThousandSpansCanBeOpenAndEndInAnyOrder) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  std::vector<Token> open;
  for (int i = 0; i < 1000; ++i) open.push_back(recorder->begin(Kind::kUser, {.payload_bytes = std::uint64_t(i)}));
  EXPECT_EQ(std::count(open.begin(), open.end(), Token{0}), 0);
  EXPECT_EQ(reader.open_spans().size(), 1000u);
  std::shuffle(open.begin(), open.end(), std::mt19937(3));
  for (const Token token : open) recorder->end(token);
  EXPECT_EQ(reader.take().size(), 1000u);
  EXPECT_EQ(recorder->current(), 0u);
  EXPECT_EQ(recorder->dropped_spans() + stale(*recorder) + foreign(*recorder), 0u);
}

TEST(Tokens, CurrentIsTheInnermostThatIsOpenInWhateverOrderSpansEnd) {
  const auto recorder = make_recorder(no_step_sampled());
  std::mt19937 random(5);
  std::vector<Token> open;  // the innermost last
  for (int i = 0; i < 200'000; ++i) {
    const bool begins = open.empty() || (open.size() < 40 && random() % 2 == 0);
    if (begins) {
      open.push_back(recorder->begin(Kind::kUser));
      ASSERT_NE(open.back(), 0u);
    } else {
      const auto at = open.begin() + (random() % 3 == 0 ? random() % open.size() : open.size() - 1);
      recorder->end(*at);
      open.erase(at);
    }
    ASSERT_EQ(recorder->current(), open.empty() ? 0 : open.back()) << i;
  }
  EXPECT_EQ(stale(*recorder) + foreign(*recorder) + recorder->dropped_spans(), 0u);
}

TEST(Tokens, AnOpenSpanIsFoundByItsKind) {
  const auto recorder = make_recorder(no_step_sampled());
  const auto bit = [](Kind kind) { return std::uint32_t{1} << static_cast<unsigned>(kind); };
  EXPECT_EQ(recorder->find_open(bit(Kind::kUser)), 0u);
  const Token outer = recorder->begin(Kind::kForwardCompute);
  const Token optimizer = recorder->begin(Kind::kOptimizer);
  const Token inner = recorder->begin(Kind::kForwardCompute);
  EXPECT_EQ(recorder->find_open(bit(Kind::kOptimizer)), optimizer);
  EXPECT_EQ(recorder->find_open(bit(Kind::kForwardCompute)), inner);
  EXPECT_EQ(recorder->find_open(bit(Kind::kForwardCompute) | bit(Kind::kOptimizer)), inner);
  EXPECT_EQ(recorder->find_open(bit(Kind::kUser)), 0u);
  recorder->end(inner);
  EXPECT_EQ(recorder->find_open(bit(Kind::kForwardCompute)), outer);
  recorder->pause();
  EXPECT_EQ(recorder->find_open(bit(Kind::kForwardCompute)), 0u);
}

TEST(Tokens, AnEndThatWasNoticedLateHasItsOwnTimeAndSource) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const Token token = recorder->begin(Kind::kUser);
  const std::int64_t ticks = recorder->clock().ticks();
  while (recorder->clock().ticks() < ticks + 1000) continue;
  recorder->end_at(token, ticks, TimeSource::kWaitReturn, span_flag::kFallbackHook);
  recorder->end_at(token, ticks, TimeSource::kWaitReturn, 0);
  recorder->end_at(recorder->begin(Kind::kUser), 0, TimeSource::kHost, 0);
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].end, ticks);
  EXPECT_EQ(spans[0].time_source, TimeSource::kWaitReturn);
  EXPECT_TRUE(spans[0].flags & span_flag::kFallbackHook);
  EXPECT_GE(spans[1].end, spans[1].start) << "now";
  EXPECT_EQ(spans[1].time_source, TimeSource::kHost);
  EXPECT_EQ(stale(*recorder), 1u);
  EXPECT_EQ(recorder->current(), 0u);
}

TEST(Tokens, AnEndThatIsStillToComeIsNowAndCounted) {
  // Far beyond a ring's span, readers would call the whole batch damaged.
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const auto misused = [&] { return recorder->header().more_losses.misused_calls.load(); };
  const std::int64_t minute = std::int64_t{1} << 40;
  for (const std::int64_t ticks : {std::numeric_limits<std::int64_t>::max(), recorder->clock().ticks() + minute}) {
    recorder->end_at(recorder->begin(Kind::kUser), ticks, TimeSource::kHost, 0);
  }
  EXPECT_EQ(misused(), 2u);
  recorder->end_at(recorder->begin(Kind::kUser), recorder->clock().ticks(), TimeSource::kHost, 0);
  recorder->end_at(recorder->begin(Kind::kUser), std::numeric_limits<std::int64_t>::min(), TimeSource::kHost, 0);
  EXPECT_EQ(misused(), 2u);
  const std::int64_t now = recorder->clock().ticks();
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 4u);
  for (const Span& span : spans) {
    EXPECT_LE(span.start, span.end);
    EXPECT_LE(span.end, now);
  }
}

TEST(Tokens, TenThousandNestedSpansDropWhatDoesNotFitAndCountIt) {
  for (const auto& options : {every_step_sampled(), no_step_sampled()}) {
    const auto recorder = make_recorder(options);
    const std::uint32_t slots = recorder->arena().sizes().large_slots;
    constexpr int kDepth = 10'000;
    std::vector<Token> open;
    for (int i = 0; i < kDepth; ++i) open.push_back(recorder->begin(Kind::kUser));
    EXPECT_EQ(dropped(*recorder, Kind::kUser), kDepth - slots);
    EXPECT_EQ(recorder->current(), open[slots - 1]) << "the innermost that has a slot";
    while (!open.empty()) {
      recorder->end(open.back());
      open.pop_back();
    }
    EXPECT_EQ(recorder->current(), 0u);
    EXPECT_NE(recorder->begin(Kind::kUser), 0u) << "there is room again";
  }
}

TEST(Tokens, ASpanEndedByAnotherThreadIsInThatThreadsRingAndSaysSo) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  recorder->end(recorder->begin(Kind::kOptimizer));
  const Token token = recorder->begin(Kind::kUser);
  std::thread([&] { recorder->end(token); }).join();
  EXPECT_EQ(recorder->current(), 0u) << "the owner's list forgets it";
  const auto entries = reader.take_entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_NE(entries[0].ring_id, entries[1].ring_id);
  EXPECT_EQ(entries[1].span.kind, Kind::kUser);
  EXPECT_TRUE(entries[1].span.flags & span_flag::kOtherThread);
  EXPECT_FALSE(entries[0].span.flags & span_flag::kOtherThread);
}

TEST(Tokens, SlotsFreedByAnotherThreadAreUsedAgain) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint32_t slots = recorder->arena().sizes().large_slots;
  for (int round = 0; round < 5; ++round) {
    std::vector<Token> open;
    for (std::uint32_t i = 0; i < slots; ++i) open.push_back(recorder->begin(Kind::kUser));
    EXPECT_EQ(recorder->begin(Kind::kGc), 0u);
    std::thread([&] {
      for (const Token token : open) recorder->end(token);
    }).join();
    reader.take();
  }
  EXPECT_EQ(dropped(*recorder, Kind::kGc), 5u) << "nothing but the one too many";
  EXPECT_EQ(stale(*recorder) + foreign(*recorder), 0u);
}

TEST(Tokens, OfTwoThreadsThatEndOneSpanOneWins) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  // Several a round: a round is turns of three threads, which a machine with more to do than cores takes long for.
  constexpr int kRounds = 1'000;
  constexpr std::size_t kSpans = 20;
  std::array<Token, kSpans> tokens{};
  std::atomic<int> round{0};
  std::atomic<int> arrived{0};
  const auto end_all = [&] {
    for (int last = 0; last < kRounds; ++last) {
      while (round.load() == last) std::this_thread::yield();
      for (const Token token : tokens) recorder->end(token);
      ++arrived;
    }
  };
  std::thread first(end_all);
  std::thread second(end_all);
  std::size_t taken = 0;
  for (int i = 1; i <= kRounds; ++i) {
    arrived = 0;
    for (Token& token : tokens) {
      token = recorder->begin(Kind::kUser);
      EXPECT_NE(token, 0u);
    }
    round = i;
    while (arrived.load() < 2) std::this_thread::yield();
    if (i % 5 == 0) taken += reader.take().size();
  }
  first.join();
  second.join();
  taken += reader.take().size();
  EXPECT_EQ(taken + recorder->dropped_spans(), kRounds * kSpans);
  EXPECT_EQ(recorder->dropped_spans(), 0u);
  EXPECT_EQ(stale(*recorder), kRounds * kSpans);
}

}  // namespace
}  // namespace smon_rt
