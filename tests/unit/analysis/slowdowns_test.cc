#include "analysis/slowdowns.h"

#include <gtest/gtest.h>

#include <cstddef>
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

const Progress kNoProgress;

std::vector<double> replay(const WhatIfJob& job, const Scenario& scenario) {
  return job.what_if.simulator().replay(scenario).optimizer;
}

std::vector<double> divide(const std::vector<double>& steps, const std::vector<double>& by) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < steps.size(); ++i) ratios.push_back(steps[i] / by[i]);
  return ratios;
}

// `named` of the breakdown against steps replayed here.
void expect_entry(const Breakdown& breakdown, const std::string& name, const std::vector<double>& steps,
                  const std::vector<double>& reference) {
  for (std::size_t i = 0; i < breakdown.names.size(); ++i) {
    if (breakdown.names[i] != name) continue;
    EXPECT_EQ(breakdown.ratios[i], mean(steps) / mean(reference)) << name;
    EXPECT_EQ(breakdown.ratios_by_step[i], divide(steps, reference)) << name;
    return;
  }
  ADD_FAILURE() << "no entry for " << name;
}

Breakdowns slowdowns_of(const WhatIfJob& job) {
  ReplayCounter counter(kNoProgress, 0);
  return slowdowns(job.what_if, job.ideal_ns(), counter);
}

Breakdowns launch_slowdowns_of(const WhatIfJob& job) {
  ReplayCounter counter(kNoProgress, 0);
  return launch_slowdowns(job.what_if, job.nodelay_ns(), counter);
}

TEST(Slowdowns, P2pKindsAreMergedByDirection) {
  const WhatIfJob job(testing::uneven_job());
  EXPECT_EQ(
      slowdowns_of(job).kind.names,
      (std::vector<std::string>{"backward_compute", "backward_pp_comm", "embedding_grads_all_reduce", "forward_compute",
                                "forward_pp_comm", "grads_reduce_scatter", "layernorm_grads_all_reduce", "optimizer",
                                "optimizer_clip_main_grad", "params_all_gather"}));
}

TEST(Slowdowns, AKindIsItsRecordedDurationsInTheIdealJob) {
  const WhatIfJob job(testing::uneven_job());
  const Breakdowns result = slowdowns_of(job);
  const auto of = [&](auto... kinds) {
    return replay(job, job.what_if.ideal_except([=](const Op& op) { return ((op.kind == kinds) || ...); }));
  };
  expect_entry(result.kind, "forward_compute", of(Kind::kForwardCompute), job.ideal_ns());
  expect_entry(result.kind, "optimizer", of(Kind::kOptimizer), job.ideal_ns());
  expect_entry(result.kind, "forward_pp_comm", of(Kind::kForwardSend, Kind::kForwardRecv), job.ideal_ns());
  expect_entry(result.kind, "backward_pp_comm", of(Kind::kBackwardSend, Kind::kBackwardRecv), job.ideal_ns());
}

TEST(Slowdowns, AStageIsItsRecordedDurationsInTheIdealJob) {
  const WhatIfJob job(testing::uneven_job());
  const Breakdowns result = slowdowns_of(job);
  ASSERT_EQ(result.stage.names.size(), 3u);
  for (int stage = 0; stage < 3; ++stage) {
    const auto steps = replay(job, job.what_if.ideal_except([&](const Op& op) { return op.stage == stage; }));
    expect_entry(result.stage, std::to_string(stage), steps, job.ideal_ns());
  }
}

TEST(Slowdowns, ADpRankIsTheReplayWithAllItsWorkersRecorded) {
  for (int dp_size : {1, 2, 5}) {
    const WhatIfJob job(testing::uneven_job(dp_size, 3));
    const Breakdowns result = slowdowns_of(job);
    ASSERT_EQ(result.dp_rank.names.size(), static_cast<std::size_t>(dp_size));
    for (std::size_t dp_rank = 0; dp_rank < static_cast<std::size_t>(dp_size); ++dp_rank) {
      WorkerSet set(static_cast<std::size_t>(dp_size), 3);
      for (std::size_t stage = 0; stage < 3; ++stage) set.add(dp_rank, stage);
      expect_entry(result.dp_rank, std::to_string(dp_rank), replay(job, job.what_if.ideal_except(set)), job.ideal_ns());
    }
  }
}

TEST(Slowdowns, AWorkerIsExactlyTheReplayWithItsOpsRecorded) {
  for (const auto& [dp_size, pp_size] : {std::pair<std::size_t, std::size_t>{1, 1}, {1, 4}, {4, 1}, {3, 3}, {2, 4}}) {
    for (testing::DpMode mode : {testing::DpMode::kPlain, testing::DpMode::kOverlapped}) {
      JobSpec spec = testing::uneven_job(static_cast<int>(dp_size), static_cast<int>(pp_size));
      spec.dp_mode = mode;
      const WhatIfJob job(spec);
      ReplayCounter counter(kNoProgress, 0);
      const auto by_step = worker_slowdowns_by_step(job.what_if, job.ideal_ns(), counter);
      ASSERT_EQ(by_step.size(), dp_size * pp_size);
      for (std::size_t dp_rank = 0; dp_rank < dp_size; ++dp_rank) {
        for (std::size_t stage = 0; stage < pp_size; ++stage) {
          WorkerSet set(dp_size, pp_size);
          set.add(dp_rank, stage);
          EXPECT_EQ(by_step[dp_rank * pp_size + stage],
                    divide(replay(job, job.what_if.ideal_except(set)), job.ideal_ns()))
              << "dp rank " << dp_rank << " of " << dp_size << ", stage " << stage << " of " << pp_size;
        }
      }
    }
  }
}

TEST(Slowdowns, ALaunchKindIsItsDelaysInTheJobWithoutDelays) {
  const WhatIfJob job(testing::uneven_job());
  const Breakdowns result = launch_slowdowns_of(job);
  const auto with = [&](const OpPredicate& keeps) {
    return replay(job, job.what_if.nodelay_with_launch_delays(keeps));
  };
  expect_entry(result.kind, "backward_compute", with([](const Op& op) { return op.kind == Kind::kBackwardCompute; }),
               job.nodelay_ns());
  expect_entry(result.stage, "1", with([](const Op& op) { return op.stage == 1; }), job.nodelay_ns());
  expect_entry(result.dp_rank, "2", replay(job, job.what_if.nodelay_with_launch_delays(2)), job.nodelay_ns());
}

TEST(Slowdowns, TheFirstOpOfEachStageIsALaunchKindOfItsOwn) {
  JobSpec spec;
  spec.launch_delay = [](const Row& row) { return 100'000 + testing::jitter(row, 200'000); };
  const WhatIfJob job(spec);
  const Breakdowns result = launch_slowdowns_of(job);
  const auto is_first = [](const Op& op) {
    return op.seq_id == 0 && op.kind == (op.stage == 0 ? Kind::kForwardCompute : Kind::kForwardRecv);
  };
  expect_entry(result.kind, "first_op", replay(job, job.what_if.nodelay_with_launch_delays(is_first)),
               job.nodelay_ns());
  const auto other_forwards = [&](const Op& op) { return op.kind == Kind::kForwardCompute && !is_first(op); };
  expect_entry(result.kind, "forward_compute", replay(job, job.what_if.nodelay_with_launch_delays(other_forwards)),
               job.nodelay_ns());
}

TEST(Slowdowns, TheReplayCountIsWhatTheThreeFunctionsMake) {
  for (int dp_size : {1, 3}) {
    for (int pp_size : {1, 4}) {
      const WhatIfJob job(testing::uneven_job(dp_size, pp_size));
      int calls = 0;
      const Progress count = [&](int, int) {
        ++calls;
        return true;
      };
      const int total = slowdown_replay_count(job.what_if);
      ReplayCounter counter(count, total);
      const std::vector<double> ideal_ns = job.ideal_ns();
      slowdowns(job.what_if, ideal_ns, counter);
      launch_slowdowns(job.what_if, job.nodelay_ns(), counter);
      worker_slowdowns_by_step(job.what_if, ideal_ns, counter);
      EXPECT_EQ(calls, total) << "dp " << dp_size << ", pp " << pp_size;
    }
  }
}

TEST(Slowdowns, AStoppedCounterStaysStoppedAndAsksNoMore) {
  int calls = 0;
  const Progress stop_at_second = [&](int, int) { return ++calls < 2; };
  ReplayCounter counter(stop_at_second, 10);
  EXPECT_TRUE(counter.next());
  EXPECT_FALSE(counter.stopped());
  EXPECT_FALSE(counter.next());
  EXPECT_TRUE(counter.stopped());
  EXPECT_FALSE(counter.next());
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace smon_rt::analysis
