#include "analysis/what_if.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::Row;
using testing::WhatIfJob;

using Workers = std::vector<std::pair<std::size_t, std::size_t>>;

std::vector<double> replay(const WhatIfJob& job, const Scenario& scenario) {
  return job.what_if.simulator().replay(scenario).optimizer;
}

TEST(WorkerSet, HoldsTheCellsThatWereAdded) {
  WorkerSet set(2, 3);
  EXPECT_TRUE(set.workers().empty());
  set.add(1, 0);
  set.add(0, 2);
  EXPECT_TRUE(set.contains(1, 0));
  EXPECT_FALSE(set.contains(0, 0));
  EXPECT_EQ(set.workers(), (Workers{{0, 2}, {1, 0}}));
}

TEST(WhatIf, TheRecordedScenarioReplaysToTheRecordedSteps) {
  for (testing::DpMode mode : {testing::DpMode::kNone, testing::DpMode::kPlain, testing::DpMode::kOverlapped}) {
    for (const auto& [dp_size, pp_size, microbatches] :
         {std::tuple(1, 1, 1), {1, 1, 5}, {1, 4, 6}, {4, 1, 3}, {3, 3, 5}, {2, 4, 2}, {2, 5, 1}}) {
      JobSpec spec = testing::uneven_job(dp_size, pp_size);
      spec.microbatches = microbatches;
      spec.dp_mode = mode;
      spec.gc = true;
      const WhatIfJob job(spec);
      const StepEnds ends = job.what_if.simulator().replay(job.what_if.recorded());
      EXPECT_EQ(ends.last, job.table.step_times_ns()) << "dp " << dp_size << ", pp " << pp_size;
      EXPECT_EQ(ends.optimizer, job.table.step_times_ns()) << "dp " << dp_size << ", pp " << pp_size;
    }
  }
}

TEST(WhatIf, WithoutLaunchDelaysTheJobIsTheOneMadeWithoutThem) {
  JobSpec spec = testing::uneven_job();
  const WhatIfJob job(spec);
  spec.launch_delay = [](const Row&) { return 0; };
  const WhatIfJob undelayed(spec);
  EXPECT_EQ(job.nodelay_ns(), undelayed.table.step_times_ns());
  EXPECT_NE(job.nodelay_ns(), job.table.step_times_ns());
}

TEST(WhatIf, AnIdealJobIsTheOneMadeOfIdealDurations) {
  JobSpec spec = testing::uneven_job();
  const WhatIfJob job(spec);
  const std::vector<double>& ideal = job.what_if.ideal_durations();
  ASSERT_EQ(ideal.size(), job.graph.size());
  std::vector<double> by_kind(kKindCount);
  for (OpIndex op = 0; op < job.graph.size(); ++op) {
    by_kind[static_cast<std::size_t>(job.graph.op(op).kind)] = ideal[op];
  }
  // Ideal durations are fractions of nanoseconds; the job is made of whole ones.
  spec.launch_delay = [](const Row&) { return 0; };
  spec.duration = [&](const Row& row) {
    return static_cast<std::int64_t>(by_kind[static_cast<std::size_t>(row.kind)]);
  };
  const WhatIfJob made(spec);
  const std::vector<double> ideal_ns = job.ideal_ns();
  for (std::size_t step = 0; step < ideal_ns.size(); ++step) {
    EXPECT_NEAR(ideal_ns[step], made.table.step_times_ns()[step], 100);
    EXPECT_EQ(ideal_ns[step], ideal_ns[0]) << "all steps are alike";
  }
}

TEST(WhatIf, KeepingNothingRecordedIsIdealAndKeepingAllIsNodelay) {
  const WhatIfJob job(testing::uneven_job());
  const WhatIf& what_if = job.what_if;
  const auto none = [](const Op&) { return false; };
  const auto all = [](const Op&) { return true; };
  EXPECT_EQ(replay(job, what_if.ideal_except(none)), job.ideal_ns());
  EXPECT_EQ(replay(job, what_if.ideal_except(all)), job.nodelay_ns());
  EXPECT_EQ(replay(job, what_if.nodelay_except(none)), job.nodelay_ns());
  EXPECT_EQ(replay(job, what_if.nodelay_except(all)), job.ideal_ns());
}

TEST(WhatIf, WorkerSetsAndPredicatesThatChooseTheSameGiveTheSame) {
  const WhatIfJob job(testing::uneven_job());
  WorkerSet last_stage(3, 3);
  for (std::size_t dp_rank = 0; dp_rank < 3; ++dp_rank) last_stage.add(dp_rank, 2);
  const auto is_last = [](const Op& op) { return op.stage == 2; };
  EXPECT_EQ(replay(job, job.what_if.ideal_except(last_stage)), replay(job, job.what_if.ideal_except(is_last)));
  EXPECT_EQ(replay(job, job.what_if.nodelay_except(last_stage)), replay(job, job.what_if.nodelay_except(is_last)));
  EXPECT_NE(replay(job, job.what_if.ideal_except(last_stage)), job.ideal_ns());
}

TEST(WhatIf, OneWorkerMayBeMadeIdealOrKept) {
  const WhatIfJob job(testing::uneven_job());
  WorkerSet slow(3, 3), fast(3, 3);
  slow.add(1, 0);
  fast.add(2, 1);
  const auto with_slow = replay(job, job.what_if.ideal_except(slow));
  const auto with_fast = replay(job, job.what_if.ideal_except(fast));
  const auto without_slow = replay(job, job.what_if.nodelay_except(slow));
  const auto without_fast = replay(job, job.what_if.nodelay_except(fast));
  for (std::size_t step = 0; step < with_slow.size(); ++step) {
    EXPECT_GT(with_slow[step], with_fast[step]);
    EXPECT_LT(without_slow[step], without_fast[step]);
  }
}

TEST(WhatIf, LaunchDelaysOfAllOpsAreTheRecordedJob) {
  const WhatIfJob job(testing::uneven_job());
  const auto all = [](const Op&) { return true; };
  const auto none = [](const Op&) { return false; };
  EXPECT_EQ(replay(job, job.what_if.nodelay_with_launch_delays(all)), job.table.step_times_ns());
  EXPECT_EQ(replay(job, job.what_if.nodelay_with_launch_delays(none)), job.nodelay_ns());
}

TEST(WhatIf, LaunchDelaysOfOneDpRankAreThoseOfTheJobInWhichOnlyItIsDelayed) {
  JobSpec spec = testing::uneven_job();
  const WhatIfJob job(spec);
  const auto delay = spec.launch_delay;
  for (int dp_rank = 0; dp_rank < 3; ++dp_rank) {
    spec.launch_delay = [&](const Row& row) { return row.dp_rank == dp_rank ? delay(row) : 0; };
    const WhatIfJob only(spec);
    EXPECT_EQ(replay(job, job.what_if.nodelay_with_launch_delays(static_cast<std::size_t>(dp_rank))),
              only.table.step_times_ns());
  }
}

}  // namespace
}  // namespace smon_rt::analysis
