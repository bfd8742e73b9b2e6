#include "analysis/contributions.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "analysis/statistics.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::Row;
using testing::WhatIfJob;

using Workers = std::vector<std::pair<std::size_t, std::size_t>>;

const Progress kNoProgress;

LossRange loss_of(const WhatIfJob& job) {
  const Simulator& simulator = job.what_if.simulator();
  return {mean(simulator.replay(job.what_if.nodelay()).last), mean(simulator.replay(job.what_if.ideal()).last)};
}

Contribution contribution(const WhatIfJob& job, const WorkerSet& set) {
  ReplayCounter counter(kNoProgress, 0);
  return contribution_of(job.what_if, set, loss_of(job), counter);
}

TEST(SlowestWorkers, AreThreePercentOfTheRanksRoundedUp) {
  const std::pair<std::size_t, std::size_t> expected[] = {{1, 1},  {4, 1},  {33, 1},  {34, 2},
                                                          {66, 2}, {67, 3}, {100, 3}, {1024, 31}};
  for (const auto& [rank_count, chosen] : expected) {
    std::vector<std::int32_t> ranks(rank_count);
    std::iota(ranks.begin(), ranks.end(), 0);
    const WorkerSet set = slowest_workers(std::vector<double>(rank_count, 1.0), ranks, rank_count, 1);
    EXPECT_EQ(set.workers().size(), chosen) << rank_count << " ranks";
    EXPECT_EQ(chosen, (3 * rank_count + 99) / 100);
  }
}

TEST(SlowestWorkers, AreThoseOfTheLargestScores) {
  std::vector<double> scores(40, 1.0);
  std::vector<std::int32_t> ranks(40);
  std::iota(ranks.begin(), ranks.end(), 0);
  scores[17] = 1.5;
  scores[30] = 1.2;
  EXPECT_EQ(slowest_workers(scores, ranks, 10, 4).workers(), (Workers{{4, 1}, {7, 2}}));
}

TEST(SlowestWorkers, EqualScoresGoToTheLowerRankNotTheLowerPlace) {
  std::vector<double> scores(40, 1.0);
  std::vector<std::int32_t> ranks(40);
  for (std::size_t i = 0; i < 40; ++i) ranks[i] = 100 - static_cast<std::int32_t>(i);
  EXPECT_EQ(slowest_workers(scores, ranks, 10, 4).workers(), (Workers{{9, 2}, {9, 3}}));
}

TEST(Contribution, IsTheShareOfTheLossThatReplayingWithoutTheWorkersGivesBack) {
  const WhatIfJob job(testing::uneven_job());
  WorkerSet set(3, 3);
  set.add(1, 0);
  const Contribution result = contribution(job, set);
  const Simulator& simulator = job.what_if.simulator();
  const StepEnds removed = simulator.replay(job.what_if.nodelay_except(set));
  const StepEnds added = simulator.replay(job.what_if.ideal_except(set));
  const LossRange range = loss_of(job);
  const double loss = range.nodelay_ns - range.ideal_ns;
  EXPECT_EQ(result.workers, (Workers{{1, 0}}));
  EXPECT_EQ(result.removed_ns, mean(removed.last));
  EXPECT_EQ(result.added_ns, mean(added.last));
  EXPECT_EQ(result.ratio, (range.nodelay_ns - mean(removed.last)) / loss);
  EXPECT_EQ(result.added_ratio, (mean(added.last) - range.ideal_ns) / loss);
  EXPECT_GT(result.ratio, 0.5) << "this worker is the slow one";
}

TEST(Contribution, OfAllWorkersIsOneAndOfNoneIsZero) {
  const WhatIfJob job(testing::uneven_job());
  WorkerSet all(3, 3);
  for (std::size_t worker = 0; worker < 9; ++worker) all.add(worker / 3, worker % 3);
  EXPECT_DOUBLE_EQ(contribution(job, all).ratio, 1);
  EXPECT_DOUBLE_EQ(contribution(job, all).added_ratio, 1);
  EXPECT_EQ(contribution(job, WorkerSet(3, 3)).ratio, 0);
  EXPECT_EQ(contribution(job, WorkerSet(3, 3)).added_ratio, 0);
}

TEST(Contribution, IsNotANumberWhereNothingIsLost) {
  JobSpec spec;
  spec.duration = [](const Row&) { return 1'024; };
  const WhatIfJob job(spec);
  WorkerSet set(2, 2);
  set.add(0, 0);
  EXPECT_TRUE(std::isnan(contribution(job, set).ratio));
}

}  // namespace
}  // namespace smon_rt::analysis
