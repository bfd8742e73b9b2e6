#include "analysis/compute_factors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
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

constexpr std::size_t kForward = 0, kBackward = 1;
constexpr double kExact = 1e-8;  // durations are whole nanoseconds of a second

ComputeFactors factors_of(const PlantedJob& planted) {
  const WhatIfJob job(planted.spec());
  return ComputeFactors(job.what_if);
}

TEST(ComputeFactors, OfAJobWithoutAnyAreOne) {
  const ComputeFactors factors = factors_of({});
  for (std::size_t pass : {kForward, kBackward}) {
    for (std::size_t stage = 0; stage < 4; ++stage) {
      EXPECT_DOUBLE_EQ(factors.stage(pass, stage), 1);
      for (std::size_t dp_rank = 0; dp_rank < 4; ++dp_rank) EXPECT_DOUBLE_EQ(factors.worker(pass, dp_rank, stage), 1);
    }
  }
  EXPECT_TRUE(std::isnan(factors.evidence().correlation));
  EXPECT_FALSE(factors.evidence().is_sequence_length());
}

TEST(ComputeFactors, AreTakenApartExactlyWithoutNoise) {
  PlantedJob planted;
  planted.worker = testing::slow_worker(2, 1, 1.7);
  planted.stage = [](int stage) { return stage == 3 ? 1.4 : 1.0; };
  planted.microbatch = testing::lengths(0.3);
  const WhatIfJob job(planted.spec());
  const ComputeFactors factors(job.what_if);
  std::vector<double> lengths;
  for (std::int64_t step = 7; step < 12; ++step) {
    for (int dp_rank = 0; dp_rank < 4; ++dp_rank) {
      for (int k = 0; k < 6; ++k) lengths.push_back(std::exp(0.3 * testing::normal({step, dp_rank, k})));
    }
  }
  const double middle = median(lengths);
  for (std::size_t pass : {kForward, kBackward}) {
    for (std::size_t stage = 0; stage < 4; ++stage) {
      EXPECT_NEAR(factors.stage(pass, stage), stage == 3 ? 1.4 : 1, kExact);
      for (std::size_t dp_rank = 0; dp_rank < 4; ++dp_rank) {
        EXPECT_NEAR(factors.worker(pass, dp_rank, stage), dp_rank == 2 && stage == 1 ? 1.7 : 1, kExact);
      }
    }
    for (std::size_t i = 0; i < factors.ops(pass).size(); ++i) {
      const int number = job.graph.op(factors.ops(pass)[i]).seq_id;
      for (std::size_t lane = 0; lane < job.timing.lane_count; ++lane) {
        const double length =
            std::exp(0.3 * testing::normal({job.table.steps()[lane / 4], std::int64_t(lane % 4), number}));
        EXPECT_NEAR(factors.microbatch(pass, i)[lane], length / middle, kExact);
      }
    }
  }
  EXPECT_NEAR(factors.evidence().correlation, 1, 1e-6);
  EXPECT_TRUE(factors.evidence().is_sequence_length());
}

TEST(ComputeFactors, ComeBackWithinTheirSamplingErrorWithNoise) {
  PlantedJob planted;
  planted.steps = 12;
  planted.worker = testing::slow_worker(0, 2, 1.3);
  planted.stage = [](int stage) { return stage == 1 ? 1.2 : 1.0; };
  planted.microbatch = testing::lengths(0.3);
  planted.noise = testing::noise_of(0.03);
  const ComputeFactors factors = factors_of(planted);
  // Four standard deviations of the difference of two medians of 72 times each.
  const double tolerance = 4 * 1.2533 * 0.03 * std::sqrt(2.0 / 72);
  for (std::size_t pass : {kForward, kBackward}) {
    for (std::size_t stage = 0; stage < 4; ++stage) {
      EXPECT_NEAR(factors.stage(pass, stage), stage == 1 ? 1.2 : 1, 1.2 * tolerance);
      for (std::size_t dp_rank = 0; dp_rank < 4; ++dp_rank) {
        EXPECT_NEAR(factors.worker(pass, dp_rank, stage), dp_rank == 0 && stage == 2 ? 1.3 : 1, 1.3 * tolerance);
      }
    }
  }
}

TEST(ComputeFactors, OfTwoTheFasterIsTypical) {
  PlantedJob planted{.dp_size = 2, .pp_size = 2};
  planted.worker = testing::slow_worker(1, 0, 2);
  const ComputeFactors factors = factors_of(planted);
  EXPECT_NEAR(factors.worker(kForward, 1, 0), 2, kExact);
  EXPECT_EQ(factors.worker(kForward, 0, 0), 1) << "its only peer is a straggler, which is nobody's yardstick";
  EXPECT_NEAR(factors.worker(kForward, 1, 1), 1, kExact);
  EXPECT_NEAR(factors.stage(kForward, 0), 1, kExact) << "a stage is not slow because one of its two workers is";
}

// Slow ones of a stage, by dp rank, and of no other stage, or of all.
std::function<double(const Row&)> slow_from(int dp_rank, int stage, double factor) {
  return [=](const Row& row) { return row.dp_rank >= dp_rank && (stage < 0 || row.stage == stage) ? factor : 1.0; };
}

TEST(ComputeFactors, OfTwoGroupsOfWorkersTheFasterIsTypical) {
  for (auto [dp_size, pp_size] : {std::pair(4, 2), {8, 1}, {8, 2}, {4, 4}, {16, 4}, {2, 4}}) {
    for (int stage : {0, -1}) {
      PlantedJob planted{.dp_size = dp_size, .pp_size = pp_size, .steps = 8};
      planted.worker = slow_from(dp_size / 2, stage, 1.5);
      planted.noise = testing::noise_of(0.02);
      const ComputeFactors factors = factors_of(planted);
      for (int other = 0; other < pp_size; ++other) {
        EXPECT_NEAR(factors.stage(kBackward, std::size_t(other)), 1, 0.03) << dp_size << " x " << pp_size;
        for (int dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
          const bool is_slow = dp_rank >= dp_size / 2 && (stage < 0 || other == stage);
          EXPECT_NEAR(factors.worker(kBackward, std::size_t(dp_rank), std::size_t(other)), is_slow ? 1.5 : 1, 0.04)
              << dp_size << " x " << pp_size << ": " << dp_rank << ", " << other;
        }
      }
    }
  }
}

TEST(ComputeFactors, WorkersOfSomeStagesOfOneRankAreTheirsAndNotItsStages) {
  PlantedJob planted{.dp_size = 2, .pp_size = 4};
  planted.worker = [](const Row& row) { return row.dp_rank == 1 && row.stage < 2 ? 1.4 : 1.0; };
  const ComputeFactors factors = factors_of(planted);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_NEAR(factors.stage(kForward, stage), 1, kExact);
    EXPECT_NEAR(factors.worker(kForward, 1, stage), stage < 2 ? 1.4 : 1, kExact);
  }
}

TEST(ComputeFactors, AStageWhoseWorkersAreMostlySlowIsSlow) {
  PlantedJob planted;
  planted.worker = slow_from(1, 2, 1.5);
  const ComputeFactors factors = factors_of(planted);
  EXPECT_NEAR(factors.stage(kForward, 2), 1.5, kExact);
  for (std::size_t dp_rank = 1; dp_rank < 4; ++dp_rank) EXPECT_NEAR(factors.worker(kForward, dp_rank, 2), 1, kExact);
}

TEST(ComputeFactors, WhatAllWorkersOfARankShareIsTheirsWhereChanceDoesNotExplainIt) {
  PlantedJob planted;
  planted.worker = [](const Row& row) { return row.dp_rank == 3 ? 1.5 : 1.0; };
  planted.noise = testing::noise_of(0.02);
  const ComputeFactors factors = factors_of(planted);
  for (std::size_t stage = 0; stage < 4; ++stage) {
    EXPECT_NEAR(factors.worker(kForward, 3, stage), 1.5, 0.03);
    EXPECT_NEAR(factors.worker(kForward, 1, stage), 1, 0.03);
  }
}

TEST(ComputeFactors, LongMicrobatchesOfOneRankAreNotItsWorkers) {
  for (int pp_size : {1, 2, 4}) {
    PlantedJob planted{.dp_size = 6, .pp_size = pp_size};
    planted.microbatch = testing::lengths(0.4);
    const ComputeFactors factors = factors_of(planted);
    for (std::size_t stage = 0; stage < static_cast<std::size_t>(pp_size); ++stage) {
      for (std::size_t dp_rank = 0; dp_rank < 6; ++dp_rank) {
        EXPECT_NEAR(factors.worker(kBackward, dp_rank, stage), 1, kExact) << pp_size;
      }
    }
  }
}

TEST(ComputeFactors, WithOneStageASlowWorkerIsToldFromItsMicrobatches) {
  PlantedJob planted{.dp_size = 6, .pp_size = 1, .steps = 20};
  planted.worker = testing::slow_worker(4, 0, 1.6);
  planted.noise = testing::noise_of(0.02);
  const ComputeFactors factors = factors_of(planted);
  EXPECT_NEAR(factors.worker(kForward, 4, 0), 1.6, 0.03);
  for (std::size_t dp_rank : {0, 1, 2, 3, 5}) EXPECT_EQ(factors.worker(kForward, dp_rank, 0), 1);
}

TEST(ComputeFactors, NoiseAndPausesAreNoSequenceLengths) {
  PlantedJob noisy;
  noisy.noise = testing::noise_of(0.3);
  EXPECT_FALSE(factors_of(noisy).evidence().is_sequence_length());

  // A pause of several computes' length in one of thirty, in the forward and the backward of the same microbatch.
  PlantedJob paused{.pp_size = 1, .steps = 10};
  paused.noise = [noise = testing::noise_of(0.02)](const Row& row) {
    return noise(row) * ((row.step * 6 + row.seq_id + row.dp_rank) % 30 == 0 ? 5 : 1);
  };
  EXPECT_FALSE(factors_of(paused).evidence().is_sequence_length());

  PlantedJob little;
  little.microbatch = testing::lengths(0.03);
  EXPECT_FALSE(factors_of(little).evidence().is_sequence_length()) << "lengths that hardly vary explain nothing";
}

TEST(ComputeFactors, OfAnOptimizerOnlyAWorkersIsTold) {
  PlantedJob planted;
  planted.optimizer = 1.05;
  EXPECT_EQ(factors_of(planted).worker(ComputeFactors::kOptimizerPass, 1, 0), 1) << "one op a step tells little";
  planted.optimizer = 3;
  const ComputeFactors factors = factors_of(planted);
  EXPECT_NEAR(factors.worker(ComputeFactors::kOptimizerPass, 1, 0), 3, kExact);
  EXPECT_EQ(factors.worker(ComputeFactors::kOptimizerPass, 0, 0), 1);
  EXPECT_EQ(factors.stage(ComputeFactors::kOptimizerPass, 0), 1);
  EXPECT_GT(factors.worker_excess(1, 0).ns, 9e9);
}

}  // namespace
}  // namespace smon_rt::analysis
