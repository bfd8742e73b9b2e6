#include "analysis/what_if_question.h"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "analysis/job_edit.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::make_job;
using testing::Row;
using testing::uneven_job;
using testing::WhatIfJob;

QuestionAnswer answer(const WhatIfJob& job, const Question& question) {
  auto answers = ask(job.what_if, {}, {question});
  EXPECT_TRUE(answers.has_value()) << (answers ? "" : answers.error().message);
  return answers ? answers->front() : QuestionAnswer{};
}

std::string refusal(const WhatIfJob& job, const Question& question) {
  auto answers = ask(job.what_if, {}, {question});
  return answers ? "" : answers.error().message;
}

void expect_steps(const std::vector<double>& actual, const std::vector<double>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t step = 0; step < actual.size(); ++step) EXPECT_NEAR(actual[step], expected[step], 1e-3) << step;
}

TEST(WhatIfQuestion, AskingNothingGivesTheRecordingBack) {
  const WhatIfJob job(uneven_job());
  const QuestionAnswer same = answer(job, {});
  expect_steps(same.after_ns, same.before_ns);
  expect_steps(same.before_ns, job.table.step_times_ns());
  EXPECT_EQ(same.dp_count, 3U);
  EXPECT_EQ(same.draw_count, 0U);
}

TEST(WhatIfQuestion, ADroppedRankIsTheSlowestAndTheOthersAreAJobWithoutIt) {
  const JobSpec spec = uneven_job();
  const WhatIfJob job(spec);
  Question question;
  question.dropped_dp_count = 1;
  const QuestionAnswer dropped = answer(job, question);
  EXPECT_EQ(dropped.dropped_dp_ranks, std::vector<std::size_t>{1});
  EXPECT_EQ(dropped.dp_count, 2U);
  // The same ops in a job that never had that rank: dp 2 goes by 1 there.
  JobSpec smaller = spec;
  smaller.dp_size = 2;
  const auto recorded = [](Row row) {
    if (row.dp_rank == 1) row.dp_rank = 2;
    return row;
  };
  smaller.duration = [&](const Row& row) { return spec.duration(recorded(row)); };
  smaller.launch_delay = [&](const Row& row) { return spec.launch_delay(recorded(row)); };
  expect_steps(dropped.after_ns, WhatIfJob(smaller).table.step_times_ns());
}

TEST(WhatIfQuestion, AFixedWorkerIsAsFastAsItsPeers) {
  const WhatIfJob job(uneven_job());
  Question question;
  question.fixed_workers = {{1, 0}};
  JobSpec healthy = uneven_job();
  healthy.duration = testing::varied_duration;
  const std::vector<double> expected = WhatIfJob(healthy).table.step_times_ns();
  const QuestionAnswer fixed = answer(job, question);
  for (std::size_t step = 0; step < expected.size(); ++step) {
    EXPECT_GT(fixed.before_ns[step], 1.2 * expected[step]);
    EXPECT_NEAR(fixed.after_ns[step], expected[step], 0.06 * expected[step]);
  }
}

TEST(WhatIfQuestion, AllThatIsAskedHoldsAtOnce) {
  const WhatIfJob job(uneven_job());
  Question question;
  question.scales = {{Kind::kForwardCompute, 1, 0, 0.5}, {Kind::kBackwardCompute, -1, 2, 3.0}};
  question.ideal_kinds = {Kind::kOptimizer};
  JobEdit edit(job.what_if);
  for (OpIndex op = 0; op < job.graph.size(); ++op) {
    const Op& it = job.graph.op(op);
    for (std::size_t lane = 0; lane < job.timing.lane_count; ++lane) {
      if (it.kind == Kind::kForwardCompute && it.stage == 0 && lane % 3 == 1) edit.durations_ns(op)[lane] *= 0.5;
      if (it.kind == Kind::kBackwardCompute && it.stage == 2) edit.durations_ns(op)[lane] *= 3.0;
      if (it.kind == Kind::kOptimizer) edit.durations_ns(op)[lane] = job.what_if.ideal_durations()[op];
    }
  }
  expect_steps(answer(job, question).after_ns, job.what_if.simulator().replay(edit.scenario()).last);
}

TEST(WhatIfQuestion, WithoutLaunchDelaysBothSidesOfTheComparisonAreWithout) {
  const WhatIfJob job(uneven_job());
  Question question;
  question.launch_delays = LaunchDelays::kNone;
  question.had_launch_delays = false;
  const std::vector<double> nodelay = job.what_if.simulator().replay(job.what_if.nodelay()).last;
  expect_steps(answer(job, question).after_ns, nodelay);
  expect_steps(answer(job, question).before_ns, nodelay);
  question.launch_delays = LaunchDelays::kExplained;  // nothing explains any
  expect_steps(answer(job, question).after_ns, nodelay);
}

TEST(WhatIfQuestion, DrawnRanksOfAJobWithoutVariationChangeNothing) {
  JobSpec spec;
  spec.duration = [](const Row& row) { return row.kind == Kind::kForwardCompute ? 1'000'000 : 500'000; };
  const WhatIfJob job(spec);
  for (std::size_t dp_count : {1, 5}) {
    Question question;
    question.dp_count = dp_count;
    const QuestionAnswer drawn = answer(job, question);
    expect_steps(drawn.after_ns, drawn.before_ns);
    EXPECT_EQ(drawn.dp_count, dp_count);
    EXPECT_GT(drawn.draw_count, 1U);
  }
}

TEST(WhatIfQuestion, DrawsAreTheSameEachTimeAndNoSlowerThanTheSlowest) {
  const WhatIfJob job(uneven_job());
  Question question;
  question.dp_count = 12;
  const QuestionAnswer drawn = answer(job, question);
  expect_steps(drawn.after_ns, answer(job, question).after_ns);
  for (std::size_t step = 0; step < drawn.after_ns.size(); ++step) {
    EXPECT_GE(drawn.after_ns[step], drawn.before_ns[step] - 1e-3);
    EXPECT_LE(drawn.after_ns[step], 1.3 * drawn.before_ns[step]);
  }
}

TEST(WhatIfQuestion, WhatIsOutsideTheJobIsRefused) {
  const WhatIfJob job(uneven_job());
  Question worker, prompt, stage, group, work, scale, factor, nobody, crowd;
  worker.fixed_workers = {{3, 0}};
  prompt.prompt_workers = {{0, 3}};
  stage.fixed_stages = {3};
  group.fixed_groups = {3};
  work.removed_work = {{HostWork::kGc, {3, -1}}};
  scale.scales = {{Kind::kForwardCompute, 3, 0, 1.0}};
  factor.scales = {{Kind::kForwardCompute, 0, 0, std::numeric_limits<double>::quiet_NaN()}};
  nobody.dropped_dp_count = 3;
  crowd.dp_count = std::size_t{1} << 40;
  EXPECT_EQ(refusal(job, worker), "a worker is outside the job");
  EXPECT_EQ(refusal(job, prompt), "a worker is outside the job");
  EXPECT_EQ(refusal(job, stage), "a stage is outside the job");
  EXPECT_EQ(refusal(job, group), "a stage is outside the job");
  EXPECT_EQ(refusal(job, work), "a place of the host's work is outside the job");
  EXPECT_EQ(refusal(job, scale), "a place to scale is outside the job");
  EXPECT_EQ(refusal(job, factor), "a factor of durations must be a positive number");
  EXPECT_EQ(refusal(job, nobody), "no dp rank is left");
  EXPECT_EQ(refusal(job, crowd), "1099511627776 dp ranks of this job are more than can be replayed");
}

TEST(WhatIfQuestion, CanBeStoppedBetweenReplays) {
  const WhatIfJob job(uneven_job());
  auto answers = ask(job.what_if, {}, {Question{}, Question{}}, [](int done, int) { return done < 2; });
  ASSERT_FALSE(answers.has_value());
  EXPECT_EQ(answers.error().message, "stopped");
}

TEST(WhatIfQuestion, CanBeStoppedBetweenDraws) {
  const WhatIfJob job(uneven_job());
  Question many;
  many.dp_count = 12;
  int asked = 0;
  auto answers = ask(job.what_if, {}, {many}, [&](int done, int total) {
    EXPECT_EQ(done, 1);
    EXPECT_EQ(total, 1);
    return ++asked < 4;
  });
  ASSERT_FALSE(answers.has_value());
  EXPECT_EQ(answers.error().message, "stopped");
  EXPECT_EQ(asked, 4);
}

}  // namespace
}  // namespace smon_rt::analysis
