#include "analysis/analyze.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "job_builder.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::ColumnStore;
using testing::JobSpec;
using testing::Row;

Result<Analysis> analyze_rows(const std::vector<Row>& rows, const JobLayout& layout, const Progress& progress = {}) {
  const ColumnStore store(rows);
  return analyze(store.view(), layout, progress);
}

Analysis analyze_job(const JobSpec& spec) {
  auto result = analyze_rows(testing::make_job(spec), spec.layout());
  EXPECT_TRUE(result) << result.error().message;
  return result ? std::move(*result) : Analysis{};
}

std::string error_of(const std::vector<Row>& rows, const JobLayout& layout) {
  auto result = analyze_rows(rows, layout);
  return result ? "no error" : result.error().message;
}

TEST(Analyze, AnswersForEachStepWorkerAndRank) {
  const JobSpec spec = testing::uneven_job(3, 2);
  const std::vector<Row> rows = testing::make_job(spec);
  const Analysis result = analyze_job(spec);
  EXPECT_EQ(result.steps, (std::vector<std::int64_t>{7, 8, 9}));
  EXPECT_EQ(result.op_count, static_cast<std::int64_t>(rows.size()));
  EXPECT_EQ(result.worker_ranks, (std::vector<std::int32_t>{0, 3, 1, 4, 2, 5}));
  EXPECT_EQ(result.base_step_ns.size(), 3u);
  EXPECT_EQ(result.slowdown_by_step.size(), 3u);
  EXPECT_EQ(result.launch_slowdown_by_step.size(), 3u);
  EXPECT_EQ(result.worker_slowdowns.size(), 6u);
  EXPECT_EQ(result.worker_slowdowns_min.size(), 6u);
  EXPECT_EQ(result.forward_medians_ns.size(), 6u);
  for (const CauseRemoval& cause : result.causes) EXPECT_EQ(cause.step_ns.size(), 3u) << cause.cause;
}

TEST(Analyze, FindsTheSlowWorker) {
  const Analysis result = analyze_job(testing::uneven_job());
  ASSERT_EQ(result.causes.front().cause, "worker");
  EXPECT_EQ(result.causes.front().workers, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}}));
  EXPECT_EQ(result.slowest_workers_exact.workers, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}}));
  EXPECT_GT(result.slowest_workers_exact.ratio, 0.8);
  EXPECT_GT(result.slowdown, 1.2);
  EXPECT_GT(result.forward_medians_ns[3], 1.8 * result.forward_medians_ns[0]);
}

TEST(Analyze, SlowdownsAreRatiosOfMeanSteps) {
  const JobSpec spec = testing::uneven_job();
  const testing::WhatIfJob job(spec);
  const Analysis result = analyze_job(spec);
  EXPECT_EQ(result.base_step_ns, job.table.step_times_ns());
  EXPECT_EQ(result.nodelay_step_ns, job.nodelay_ns());
  EXPECT_EQ(result.ideal_step_ns, job.ideal_ns());
  EXPECT_DOUBLE_EQ(result.slowdown, mean(job.nodelay_ns()) / mean(job.ideal_ns()));
  EXPECT_DOUBLE_EQ(result.launch_slowdown, mean(job.table.step_times_ns()) / mean(job.nodelay_ns()));
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_DOUBLE_EQ(result.slowdown_by_step[step], job.nodelay_ns()[step] / job.ideal_ns()[step]);
  }
  EXPECT_LE(result.slowdown_interval.low, result.slowdown);
  EXPECT_GE(result.slowdown_interval.high, result.slowdown);
  EXPECT_DOUBLE_EQ(result.fidelity.simulation_error_mean, result.launch_slowdown - 1);
  EXPECT_GE(result.fidelity.simulation_error_worst, result.fidelity.simulation_error_mean);
  EXPECT_EQ(result.fidelity.early_start_count, 0);
}

TEST(Analyze, TheLastStageIsAContributionOfAllItsWorkers) {
  const Analysis result = analyze_job(testing::uneven_job(2, 3));
  EXPECT_EQ(result.last_stage.workers, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 2}, {1, 2}}));
}

TEST(Analyze, TheMinimumOfStageAndDpRankIsReportedBesideTheExactOne) {
  const Analysis result = analyze_job(testing::uneven_job(2, 3));
  for (std::size_t dp_rank = 0; dp_rank < 2; ++dp_rank) {
    for (std::size_t stage = 0; stage < 3; ++stage) {
      EXPECT_EQ(result.worker_slowdowns_min[dp_rank * 3 + stage],
                std::min(result.slowdowns.dp_rank.ratios[dp_rank], result.slowdowns.stage.ratios[stage]));
    }
  }
}

TEST(Analyze, RowOrderAndStepNumbersDoNotMatter) {
  const JobSpec spec = testing::uneven_job();
  std::vector<Row> rows = testing::make_job(spec);
  const Analysis expected = analyze_job(spec);
  for (Row& row : rows) row.step = 1'000'000 * row.step - 8'000'000;
  std::reverse(rows.begin(), rows.end());
  auto result = analyze_rows(rows, spec.layout());
  ASSERT_TRUE(result) << result.error().message;
  EXPECT_EQ(result->steps, (std::vector<std::int64_t>{-1'000'000, 0, 1'000'000}));
  EXPECT_EQ(result->base_step_ns, expected.base_step_ns);
  EXPECT_EQ(result->nodelay_step_ns, expected.nodelay_step_ns);
  for (std::size_t worker = 0; worker < 9; ++worker) {
    EXPECT_DOUBLE_EQ(result->worker_slowdowns[worker], expected.worker_slowdowns[worker]);
  }
}

TEST(Analyze, AJobKTimesAsSlowHasTheSameRatios) {
  JobSpec spec = testing::uneven_job();
  const Analysis once = analyze_job(spec);
  const auto duration = spec.duration;
  const auto delay = spec.launch_delay;
  spec.duration = [&](const Row& row) { return 4 * duration(row); };
  spec.launch_delay = [&](const Row& row) { return 4 * delay(row); };
  const Analysis scaled = analyze_job(spec);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_EQ(scaled.base_step_ns[step], 4 * once.base_step_ns[step]);
    EXPECT_DOUBLE_EQ(scaled.ideal_step_ns[step], 4 * once.ideal_step_ns[step]);
  }
  EXPECT_DOUBLE_EQ(scaled.slowdown, once.slowdown);
  EXPECT_DOUBLE_EQ(scaled.slowest_workers.ratio, once.slowest_workers.ratio);
}

TEST(Analyze, OneStepHasNoInterval) {
  JobSpec spec = testing::uneven_job();
  spec.steps = 1;
  const Analysis result = analyze_job(spec);
  EXPECT_EQ(result.steps.size(), 1u);
  EXPECT_FALSE(result.slowdown_interval.is_known);
  EXPECT_GT(result.slowdown, 1);
}

TEST(Analyze, OneWorkerIsAllThereIs) {
  JobSpec spec = testing::uneven_job(1, 1);
  spec.dp_mode = testing::DpMode::kNone;
  const Analysis result = analyze_job(spec);
  ASSERT_EQ(result.worker_slowdowns.size(), 1u);
  EXPECT_EQ(result.slowdowns.dp_rank.ratios[0], result.slowdowns.stage.ratios[0]);
  for (std::size_t step = 0; step < 3; ++step) {
    EXPECT_DOUBLE_EQ(result.worker_slowdowns_by_step[0][step],
                     result.nodelay_step_ns[step] / result.ideal_step_ns[step]);
  }
}

TEST(Analyze, AJobWithoutStragglersIsIdeal) {
  JobSpec spec;
  spec.duration = [](const Row&) { return 1 << 20; };
  const Analysis result = analyze_job(spec);
  EXPECT_EQ(result.slowdown, 1);
  EXPECT_EQ(result.launch_slowdown, 1);
  for (double slowdown : result.worker_slowdowns) EXPECT_EQ(slowdown, 1);
  EXPECT_TRUE(std::isnan(result.slowest_workers.ratio));
}

TEST(Analyze, OpsOfNoDurationAreAnError) {
  JobSpec spec;
  spec.dp_size = spec.pp_size = spec.microbatches = 1;
  spec.dp_mode = testing::DpMode::kNone;
  std::vector<Row> rows = testing::make_job(spec);
  for (Row& row : rows) {
    row.start_ns = row.step * 1000;
    row.duration_ns = 0;
  }
  EXPECT_EQ(error_of(rows, spec.layout()), "all ops of a step last 0 s: nothing to analyse");
}

TEST(Analyze, ErrorsOfEveryPartSurface) {
  const JobSpec spec;
  const std::vector<Row> good = testing::make_job(spec);
  EXPECT_EQ(error_of({}, spec.layout()), "there are no ops");

  std::vector<Row> rows = good;
  rows[3].stage = 2;
  EXPECT_EQ(error_of(rows, spec.layout()), "stage 2 in row 3 is outside 0..1");

  rows = good;
  rows.pop_back();
  EXPECT_NE(error_of(rows, spec.layout()).find("the former lacks optimizer"), std::string::npos)
      << error_of(rows, spec.layout());

  rows = good;
  for (Row& row : rows) row.kind = row.kind == Kind::kLayernormGradsAllReduce ? Kind::kEval : row.kind;
  EXPECT_EQ(error_of(rows, spec.layout()), "the reference rules have no place for eval 0 of stage 0");
}

TEST(Analyze, ProgressCountsReplaysUpToTheMostThatThereMayBe) {
  for (const auto& [dp_size, pp_size] : {std::pair(1, 1), {3, 2}, {2, 4}}) {
    JobSpec spec = testing::uneven_job(dp_size, pp_size);
    std::vector<int> done, totals;
    auto result = analyze_rows(testing::make_job(spec), spec.layout(), [&](int now, int total) {
      done.push_back(now);
      totals.push_back(total);
      return true;
    });
    ASSERT_TRUE(result);
    ASSERT_FALSE(done.empty());
    EXPECT_EQ(done.front(), 1);
    EXPECT_EQ(done.back(), totals.back());
    EXPECT_LE(static_cast<int>(done.size()), totals.back());
    for (std::size_t i = 1; i + 1 < done.size(); ++i) EXPECT_EQ(done[i], done[i - 1] + 1);
    for (int total : totals) EXPECT_EQ(total, totals.front());
  }
}

TEST(Analyze, ProgressMayStopItAfterAnyReplay) {
  JobSpec spec = testing::uneven_job(2, 2);
  const std::vector<Row> rows = testing::make_job(spec);
  int total = 0;
  ASSERT_TRUE(analyze_rows(rows, spec.layout(), [&](int, int) {
    ++total;
    return true;
  }));
  for (int last = 1; last <= total; ++last) {
    int calls = 0;
    auto result = analyze_rows(rows, spec.layout(), [&](int, int) { return ++calls < last; });
    ASSERT_FALSE(result) << "stopped at call " << last;
    EXPECT_EQ(result.error().message, "stopped");
    EXPECT_EQ(calls, last) << "asked again after it was told to stop";
  }
}

}  // namespace
}  // namespace smon_rt::analysis
