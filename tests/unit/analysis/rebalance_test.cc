#include "analysis/rebalance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::Row;
using testing::WhatIfJob;

// One dp rank has the long microbatches of a step, the other one the short ones; the next step it is the other way
// round, else the rank would be slow, not its microbatches long.
JobSpec lopsided_job() {
  JobSpec spec;
  spec.pp_size = 3;
  spec.steps = 4;
  spec.duration = [](const Row& row) -> std::int64_t {
    const std::int64_t length = (row.dp_rank + row.step) % 2 == 0 ? 3 + row.microbatch : 1 + row.microbatch % 2;
    if (row.kind == Kind::kForwardCompute) return 100'000 * length;
    if (row.kind == Kind::kBackwardCompute) return 200'000 * length;
    return 10'000;
  };
  return spec;
}

std::vector<double> sums_by_rank(const WhatIfJob& job, const Scenario& scenario, std::size_t step) {
  std::vector<double> sums(2, 0);
  for (OpIndex op = 0; op < job.graph.size(); ++op) {
    if (job.graph.op(op).kind != Kind::kForwardCompute || job.graph.op(op).stage != 0) continue;
    for (std::size_t rank = 0; rank < 2; ++rank) sums[rank] += scenario.durations[op].lanes[2 * step + rank];
  }
  return sums;
}

TEST(Rebalance, RanksGetAsMuchAsEachOtherAndNothingIsLost) {
  const WhatIfJob job(lopsided_job());
  JobEdit edit(job.what_if);
  rebalance_microbatches(edit, job.what_if, ComputeFactors(job.what_if));
  for (std::size_t step = 0; step < job.what_if.step_count(); ++step) {
    const std::vector<double> before = sums_by_rank(job, job.what_if.recorded(), step);
    const std::vector<double> after = sums_by_rank(job, edit.scenario(), step);
    EXPECT_GT(std::max(before[0], before[1]), 2 * std::min(before[0], before[1]));
    EXPECT_NEAR(after[0], after[1], 0.06 * (before[0] + before[1]));
    EXPECT_NEAR(after[0] + after[1], before[0] + before[1], 1);
  }
}

TEST(Rebalance, EachRankRunsItsLongestFirst) {
  const WhatIfJob job(lopsided_job());
  JobEdit edit(job.what_if);
  rebalance_microbatches(edit, job.what_if, ComputeFactors(job.what_if));
  for (std::size_t lane = 0; lane < job.timing.lane_count; ++lane) {
    std::vector<double> durations(4);
    for (OpIndex op = 0; op < job.graph.size(); ++op) {
      const Op& it = job.graph.op(op);
      if (it.kind != Kind::kForwardCompute || it.stage != 1) continue;
      durations[static_cast<std::size_t>(it.microbatch)] = edit.scenario().durations[op].lanes[lane];
    }
    EXPECT_TRUE(std::is_sorted(durations.rbegin(), durations.rend())) << "lane " << lane;
  }
}

TEST(Rebalance, MicrobatchesOfOneLengthStayAsTheyAre) {
  JobSpec spec;
  spec.duration = [](const Row& row) { return row.kind == Kind::kForwardCompute ? 300'000 : 600'000; };
  const WhatIfJob job(spec);
  JobEdit edit(job.what_if);
  rebalance_microbatches(edit, job.what_if, ComputeFactors(job.what_if));
  for (OpIndex op = 0; op < job.graph.size(); ++op) {
    for (std::size_t lane = 0; lane < job.timing.lane_count; ++lane) {
      EXPECT_NEAR(edit.scenario().durations[op].lanes[lane], job.timing.durations(op)[lane], 1e-6);
    }
  }
}

}  // namespace
}  // namespace smon_rt::analysis
