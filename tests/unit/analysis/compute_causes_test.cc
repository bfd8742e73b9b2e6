#include "analysis/compute_causes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "analysis/statistics.h"
#include "planted_jobs.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::PlantedJob;
using testing::Row;
using testing::WhatIfJob;
using Workers = std::vector<std::pair<std::size_t, std::size_t>>;

const Progress kNoProgress;

struct Found {
  std::vector<CauseRemoval> causes;
  double step_ns = 0;

  const CauseRemoval* of(const std::string& cause) const {
    const auto found =
        std::find_if(causes.begin(), causes.end(), [&](const CauseRemoval& one) { return one.cause == cause; });
    return found == causes.end() ? nullptr : &*found;
  }
  double gain_ns(const std::string& cause) const {
    return of(cause) == nullptr ? 0 : step_ns - mean(of(cause)->step_ns);
  }
};

Found causes_of(const PlantedJob& planted, const Progress& progress = kNoProgress) {
  const WhatIfJob job(planted.spec());
  const CauseBasis basis{.base_step_ns = job.table.step_times_ns(),
                         .recorded_step_ns = job.what_if.simulator().replay(job.what_if.recorded()).last,
                         .nodelay_step_ns = job.nodelay_ns()};
  ReplayCounter counter(progress, kComputeCauseReplays);
  return {compute_causes(job.what_if, ComputeFactors(job.what_if), basis, counter), mean(basis.base_step_ns)};
}

double step_ns(const PlantedJob& planted) {
  return mean(WhatIfJob(planted.spec()).table.step_times_ns());
}

TEST(ComputeCauses, ASlowWorkerGivesBackWhatTheJobWithoutItTakesLess) {
  PlantedJob planted;
  planted.microbatch = testing::lengths(0.2);
  const double without_ns = step_ns(planted);
  planted.worker = testing::slow_worker(2, 1, 1.7);
  const Found found = causes_of(planted);
  ASSERT_NE(found.of("worker"), nullptr);
  EXPECT_EQ(found.of("worker")->workers, (Workers{{2, 1}}));
  EXPECT_EQ(std::pair(found.of("worker")->dp_rank, found.of("worker")->stage), std::pair(2, 1));
  EXPECT_NEAR(found.gain_ns("worker"), found.step_ns - without_ns, 1e3);
  EXPECT_NEAR(found.gain_ns("stage"), 0, 1e3) << "the stage is not slow because one of its workers is";
  ASSERT_EQ(found.of("worker")->detail.front().first, "forward_compute_ratio");
  EXPECT_NEAR(found.of("worker")->detail.front().second, 1.7, 1e-6);
}

TEST(ComputeCauses, ASlowStageGivesBackWhatTheJobWithoutItTakesLess) {
  for (int stage : {0, 2, 3}) {
    PlantedJob planted;
    const double without_ns = step_ns(planted);
    planted.stage = [=](int other) { return other == stage ? 1.4 : 1.0; };
    const Found found = causes_of(planted);
    ASSERT_NE(found.of("stage"), nullptr);
    EXPECT_EQ(found.of("stage")->stage, stage);
    EXPECT_NEAR(found.gain_ns("stage"), found.step_ns - without_ns, 1e3);
    EXPECT_NEAR(found.gain_ns("worker"), 0, 1e3);
    EXPECT_EQ(found.of("sequence_length"), nullptr);
  }
}

TEST(ComputeCauses, LongSequencesGiveBackWhatMedianMicrobatchesTakeLess) {
  PlantedJob planted;
  planted.microbatch = testing::lengths(0.4);
  const Found found = causes_of(planted);
  ASSERT_NE(found.of("sequence_length"), nullptr);
  std::vector<double> lengths;
  for (std::int64_t step = 7; step < 12; ++step) {
    for (int dp_rank = 0; dp_rank < 4; ++dp_rank) {
      for (int k = 0; k < 6; ++k) lengths.push_back(std::exp(0.4 * testing::normal({step, dp_rank, k})));
    }
  }
  planted.microbatch = [middle = median(lengths)](const Row&) { return middle; };
  EXPECT_NEAR(found.gain_ns("sequence_length"), found.step_ns - step_ns(planted), 1e3);
  EXPECT_NEAR(found.gain_ns("worker"), 0, 1e3);
  EXPECT_NEAR(found.gain_ns("noise"), 0, 1e3);
}

TEST(ComputeCauses, WithoutEvidenceForLengthsTheSpreadIsNoise) {
  PlantedJob planted;
  planted.noise = testing::noise_of(0.2);
  const Found found = causes_of(planted);
  EXPECT_EQ(found.of("sequence_length"), nullptr);
  EXPECT_GT(found.gain_ns("noise"), 0.1 * found.step_ns);
}

TEST(ComputeCauses, NothingGivesBackThreePercentOfAHealthyJob) {
  for (auto [dp_size, pp_size] : {std::pair(4, 4), {16, 2}, {16, 1}, {1, 4}, {2, 1}, {2, 4}, {3, 3}, {64, 1}}) {
    PlantedJob planted{.dp_size = dp_size, .pp_size = pp_size, .steps = 12};
    planted.noise = testing::noise_of(0.08);
    const Found found = causes_of(planted);
    EXPECT_LT(found.gain_ns("worker"), 0.03 * found.step_ns) << dp_size << " x " << pp_size;
    EXPECT_LT(found.gain_ns("stage"), 0.03 * found.step_ns) << dp_size << " x " << pp_size;
  }
}

TEST(ComputeCauses, WorkersThatHideBehindEachOtherAreOneCause) {
  PlantedJob planted;
  planted.worker = [](const Row& row) { return row.stage == 1 && row.dp_rank % 2 == 1 ? 1.5 : 1.0; };
  const Found both = causes_of(planted);
  ASSERT_NE(both.of("worker"), nullptr);
  EXPECT_EQ(both.of("worker")->workers, (Workers{{1, 1}, {3, 1}}));
  planted.worker = [](const Row&) { return 1.0; };
  // The median of the three others lies half way between slow and usual ones for nobody: all come down to usual.
  EXPECT_NEAR(both.gain_ns("worker"), both.step_ns - step_ns(planted), 1e3);
}

TEST(ComputeCauses, HalfOfTheWorkersAreNamedTogether) {
  for (auto [dp_size, pp_size] : {std::pair(8, 1), {8, 2}, {4, 4}, {2, 4}, {2, 8}, {4, 2}}) {
    PlantedJob planted{.dp_size = dp_size, .pp_size = pp_size, .steps = 8};
    planted.noise = testing::noise_of(0.02);
    const double without_ns = step_ns(planted);
    planted.worker = [half = dp_size / 2](const Row& row) { return row.dp_rank >= half ? 1.4 : 1.0; };
    const Found found = causes_of(planted);
    ASSERT_NE(found.of("worker"), nullptr);
    Workers workers = found.of("worker")->workers, expected;
    std::sort(workers.begin(), workers.end());
    for (std::size_t i = std::size_t(dp_size) / 2; i < std::size_t(dp_size); ++i) {
      for (std::size_t stage = 0; stage < std::size_t(pp_size); ++stage) expected.emplace_back(i, stage);
    }
    EXPECT_EQ(workers, expected) << dp_size << " x " << pp_size;
    EXPECT_NEAR(found.gain_ns("worker"), found.step_ns - without_ns, 0.03 * (found.step_ns - without_ns));
    EXPECT_LT(found.gain_ns("stage"), 0.02 * found.step_ns) << dp_size << " x " << pp_size;
  }
}

TEST(ComputeCauses, AllWorkersOfADpRankAreOneCause) {
  for (auto [dp_size, pp_size] : {std::pair(3, 4), {4, 2}, {8, 4}}) {
    PlantedJob planted{.dp_size = dp_size, .pp_size = pp_size, .steps = 8};
    planted.noise = testing::noise_of(0.02);
    const double without_ns = step_ns(planted);
    planted.worker = [](const Row& row) { return row.dp_rank == 1 ? 1.3 : 1.0; };
    const Found found = causes_of(planted);
    ASSERT_NE(found.of("worker"), nullptr);
    EXPECT_EQ(found.of("worker")->workers.size(), std::size_t(pp_size));
    EXPECT_EQ(found.of("worker")->dp_rank, 1);
    EXPECT_NEAR(found.gain_ns("worker"), found.step_ns - without_ns, 0.03 * (found.step_ns - without_ns));
  }
}

TEST(ComputeCauses, AWorkerThatAloneGivesBackMostComesAlone) {
  PlantedJob planted;
  planted.worker = [](const Row& row) {
    return row.dp_rank == 1 && row.stage == 2 ? 2.0 : row.dp_rank == 0 && row.stage == 0 ? 1.1 : 1.0;
  };
  const Found found = causes_of(planted);
  ASSERT_NE(found.of("worker"), nullptr);
  EXPECT_EQ(found.of("worker")->workers, (Workers{{1, 2}}));
}

TEST(ComputeCauses, WithOneDpRankTheLastStageIsAStageAndAnyOtherAWorker) {
  for (int stage : {1, 3}) {
    PlantedJob planted{.dp_size = 1};
    planted.stage = [=](int other) { return other == stage ? 1.5 : 1.0; };
    const Found found = causes_of(planted);
    const char* cause = stage == 3 ? "stage" : "worker";
    ASSERT_NE(found.of(cause), nullptr);
    EXPECT_EQ(found.of(cause)->stage, stage);
    EXPECT_EQ(found.of(stage == 3 ? "worker" : "stage"), nullptr) << "they are the same ops";
  }
}

TEST(ComputeCauses, OfASlowOptimizerTheWorkerIsTheCause) {
  PlantedJob planted;
  planted.optimizer = 5;
  const Found found = causes_of(planted);
  ASSERT_NE(found.of("worker"), nullptr);
  EXPECT_EQ(found.of("worker")->workers, (Workers{{1, 0}}));
  EXPECT_NEAR(found.gain_ns("worker"), 4e9, 1e3);
  EXPECT_EQ(found.of("worker")->detail.back().first, "optimizer_ratio");
}

TEST(ComputeCauses, GainsGrowWithTheJob) {
  PlantedJob planted;
  planted.worker = testing::slow_worker(2, 1, 1.3);
  planted.stage = [](int stage) { return stage == 3 ? 1.2 : 1.0; };
  planted.microbatch = testing::lengths(0.3);
  planted.noise = testing::noise_of(0.05);
  const Found once = causes_of(planted);
  planted.scale = 4;
  const Found scaled = causes_of(planted);
  ASSERT_EQ(scaled.causes.size(), once.causes.size());
  for (std::size_t i = 0; i < once.causes.size(); ++i) {
    EXPECT_EQ(scaled.causes[i].cause, once.causes[i].cause);
    EXPECT_NEAR(mean(scaled.causes[i].step_ns), 4 * mean(once.causes[i].step_ns), 1e3) << once.causes[i].cause;
  }
}

TEST(ComputeCauses, MayBeStoppedAfterAnyReplayAndTakeNoMoreThanTheySay) {
  PlantedJob planted;
  planted.worker = [](const Row& row) { return row.stage == 1 && row.dp_rank % 2 == 1 ? 1.5 : 1.0; };
  planted.microbatch = testing::lengths(0.3);
  int replays = 0;
  causes_of(planted, [&](int, int) { return ++replays > 0; });
  EXPECT_LE(replays, kComputeCauseReplays);
  for (int last = 1; last <= replays; ++last) {
    int calls = 0;
    causes_of(planted, [&](int, int) { return ++calls < last; });
    EXPECT_EQ(calls, last) << "asked again after it was told to stop";
  }
}

}  // namespace
}  // namespace smon_rt::analysis
