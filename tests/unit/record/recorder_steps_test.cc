#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <thread>
#include <vector>

#include "record/recorder.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::CountingClock;
using testing::dropped;
using testing::every_step_sampled;
using testing::make_recorder;
using testing::no_step_sampled;
using testing::RingReader;

std::vector<StepTicks> logged_steps(Recorder& recorder) {
  std::array<StepTicks, 64> some;
  std::vector<StepTicks> all;
  while (const std::size_t count = recorder.step_log().read(some))
    all.insert(all.end(), some.begin(), some.begin() + count);
  return all;
}

TEST(RecorderSteps, AStepEndsWhereTheNextOneBegins) {
  CountingClock clock;
  RecorderOptions options = every_step_sampled();
  options.clock = &clock.clock();
  const auto recorder = make_recorder(options);
  for (int step = 10; step < 13; ++step) {
    recorder->step_begin(step);
    clock.advance(100);
  }
  recorder->step_end();
  const auto steps = logged_steps(*recorder);
  ASSERT_EQ(steps.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(steps[i].step, 10 + i);
    EXPECT_EQ(steps[i].end_ticks - steps[i].start_ticks, 101);
    EXPECT_TRUE(steps[i].is_sampled);
    EXPECT_FALSE(steps[i].is_counted);
    if (i > 0) {
      EXPECT_EQ(steps[i].start_ticks, steps[i - 1].end_ticks);
    }
  }
  EXPECT_EQ(recorder->steps(), 3u);
  EXPECT_EQ(recorder->sampled_steps(), 3u);
  EXPECT_EQ(recorder->header().finished_steps.load(), 3u);
}

TEST(RecorderSteps, ASampledStepIsASpanAndOneThatIsNotIsOnlyLogged) {
  RecorderOptions options = every_step_sampled();
  options.sampling = {.sample_ratio = 0, .warmup_steps = 0, .always_steps = 2};
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  for (int step = 0; step < 5; ++step) recorder->step_begin(step);
  recorder->step_end();
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[1].kind, Kind::kStep);
  EXPECT_EQ(spans[1].step, 1u);
  EXPECT_LT(spans[1].start, spans[1].end);
  const auto steps = logged_steps(*recorder);
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_TRUE(steps[1].is_sampled);
  EXPECT_FALSE(steps[2].is_sampled);
  EXPECT_EQ(recorder->sampled_steps(), 2u);
}

TEST(RecorderSteps, WarmUpIsMarkedInStepsAndSpans) {
  RecorderOptions options = every_step_sampled();
  options.sampling = {.sample_ratio = 0, .warmup_steps = 2, .always_steps = 1};
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  for (int step = 100; step < 105; ++step) {
    recorder->step_begin(step);
    recorder->end(recorder->begin(Kind::kOptimizer));
  }
  recorder->step_end();
  std::vector<std::uint32_t> warm;
  std::vector<std::uint32_t> kept;
  for (const Span& span : reader.take()) {
    if (span.kind == Kind::kOptimizer) (span.flags & span_flag::kWarmup ? warm : kept).push_back(span.step);
  }
  EXPECT_EQ(warm, (std::vector<std::uint32_t>{100, 101}));
  EXPECT_EQ(kept, (std::vector<std::uint32_t>{102}));
  EXPECT_TRUE(logged_steps(*recorder).at(1).is_warmup);
}

TEST(RecorderSteps, StepsWithoutANumberAreCountedAndSaySo) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  for (int i = 0; i < 3; ++i) recorder->step_begin(-1);
  recorder->step_begin(50);
  recorder->step_begin(-1);
  recorder->step_end();
  const auto steps = logged_steps(*recorder);
  ASSERT_EQ(steps.size(), 5u);
  EXPECT_EQ(steps[2].step, 2u);
  EXPECT_TRUE(steps[2].is_counted);
  EXPECT_FALSE(steps[3].is_counted);
  EXPECT_EQ(steps[4].step, 51u);
  EXPECT_TRUE(reader.take().at(0).flags & span_flag::kStepCounted);
}

TEST(RecorderSteps, StepNumbersThatDoNotFitAreCountedAndTheirSpansNotRecorded) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const auto& saturated = recorder->header().more_losses.saturated_steps;
  recorder->step_begin(0xffff'fffe);
  recorder->end(recorder->begin(Kind::kOptimizer));
  EXPECT_EQ(saturated.load(), 0u) << "the last that fits";
  for (const std::int64_t step : {std::int64_t{0xffff'ffff}, std::int64_t{1} << 40, std::int64_t{-1}}) {
    recorder->step_begin(step);
    EXPECT_FALSE(recorder->is_sampled());
    recorder->end(recorder->begin(Kind::kOptimizer));
  }
  EXPECT_EQ(recorder->header().step.load(), 0xffff'ffff);
  recorder->step_begin(7);  // numbers that fit are as good as ever
  recorder->end(recorder->begin(Kind::kUser));
  recorder->step_end();
  EXPECT_EQ(saturated.load(), 3u);
  const auto steps = logged_steps(*recorder);
  ASSERT_EQ(steps.size(), 5u) << "the times of all are there";
  for (int i = 1; i < 4; ++i) {
    EXPECT_EQ(steps[i].step, 0xffff'ffffu);
    EXPECT_FALSE(steps[i].is_sampled);
  }
  std::vector<std::uint32_t> recorded;
  for (const Span& span : reader.take()) recorded.push_back(span.step);
  EXPECT_EQ(recorded, (std::vector<std::uint32_t>{0xffff'fffe, 0xffff'fffe, 7, 7}));
}

TEST(RecorderSteps, SpansBeforeTheFirstStepBelongToStepZeroByOurCount) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  recorder->end(recorder->begin(Kind::kStartup));
  const Span span = reader.take().at(0);
  EXPECT_EQ(span.step, 0u);
  EXPECT_TRUE(span.flags & span_flag::kStepCounted);
}

TEST(RecorderSteps, TheTableShowsTheStepThatRuns) {
  const auto recorder = make_recorder(no_step_sampled());
  ArenaHeader& header = recorder->header();
  EXPECT_EQ(header.step.load(), -1);
  EXPECT_EQ(header.phase.load(), Phase::kStarting);
  recorder->step_begin(12);
  EXPECT_EQ(header.step.load(), 12);
  EXPECT_GT(header.step_start_ticks.load(), 0);
  EXPECT_EQ(header.phase.load(), Phase::kTraining);
  recorder->set_phase(Phase::kEval);
  recorder->step_begin(13);
  EXPECT_EQ(header.phase.load(), Phase::kEval) << "who said so ends it";
}

TEST(RecorderSteps, AStepDuringWhichRecordingPausedHasNoTime) {
  const auto recorder = make_recorder(every_step_sampled());
  recorder->step_begin(1);
  recorder->pause();
  recorder->step_begin(2);
  recorder->resume();
  recorder->step_begin(3);
  recorder->step_end();
  const auto steps = logged_steps(*recorder);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].step, 3u);
}

TEST(RecorderSteps, EndingTwiceOrWithoutABeginDoesNothing) {
  const auto recorder = make_recorder(every_step_sampled());
  recorder->step_end();
  recorder->step_begin(1);
  recorder->step_end();
  recorder->step_end();
  EXPECT_EQ(logged_steps(*recorder).size(), 1u);
}

TEST(RecorderSteps, AFullLogIsCounted) {
  const auto recorder = make_recorder(no_step_sampled());
  for (std::size_t step = 0; step < StepLog::kCapacity + 11; ++step)
    recorder->step_begin(static_cast<std::int64_t>(step));
  EXPECT_EQ(dropped(*recorder, Kind::kStep), 10u);
  EXPECT_EQ(logged_steps(*recorder).size(), StepLog::kCapacity);
}

TEST(RecorderSteps, RequestedWindowsAreSampled) {
  const auto recorder = make_recorder(no_step_sampled());
  recorder->step_begin(0);
  EXPECT_EQ(recorder->sampling().request(2, 2), Sampling::RequestResult::kAccepted);
  std::vector<bool> sampled;
  for (int step = 1; step < 6; ++step) {
    recorder->step_begin(step);
    sampled.push_back(recorder->is_sampled());
  }
  EXPECT_EQ(sampled, (std::vector<bool>{false, true, true, false, false}));
}

TEST(RecorderSteps, ThreadsThatBeginStepsAtOnceLoseNoneOfTheTable) {
  const auto recorder = make_recorder(no_step_sampled());
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < 20'000; ++k) recorder->step_begin(-1);
    });
  }
  std::uint64_t logged = 0;
  std::array<StepTicks, 64> some;
  for (auto& thread : threads) thread.join();
  while (const std::size_t count = recorder->step_log().read(some)) logged += count;
  EXPECT_EQ(logged + dropped(*recorder, Kind::kStep), recorder->steps());
}

}  // namespace
}  // namespace smon_rt
