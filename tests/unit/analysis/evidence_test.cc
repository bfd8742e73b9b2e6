#include "analysis/evidence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::Row;
using testing::WhatIfJob;

TEST(Evidence, BackwardsThatFollowTheirForwardsCorrelateFully) {
  JobSpec spec;
  spec.duration = [](const Row& row) {
    const std::int64_t length = 1'000'000 + 200'000 * (row.microbatch < 0 ? 0 : row.microbatch);
    return row.kind == Kind::kBackwardCompute ? 2 * length : length;
  };
  const ForwardBackward result = forward_backward(WhatIfJob(spec).what_if);
  EXPECT_NEAR(result.correlation, 1, 1e-12);
  // 1.0 1.2 1.4 1.6 ms: deviation sqrt(0.05) of a mean of 1.3.
  EXPECT_NEAR(result.forward_cv, std::sqrt(0.05) / 1.3, 1e-12);
}

TEST(Evidence, BackwardsThatGoAgainstTheirForwardsCorrelateNegatively) {
  JobSpec spec;
  spec.duration = [](const Row& row) {
    if (row.kind == Kind::kForwardCompute) return 1'000'000 + 200'000 * row.microbatch;
    return row.kind == Kind::kBackwardCompute ? 3'000'000 - 300'000 * row.microbatch : 20'000;
  };
  EXPECT_NEAR(forward_backward(WhatIfJob(spec).what_if).correlation, -1, 1e-12);
}

TEST(Evidence, WorkersThatDifferFromOneAnotherAreNoVariationWithinThem) {
  JobSpec spec = {};
  spec.duration = [](const Row& row) { return 1'000'000 * (1 + row.stage + 3 * row.dp_rank); };
  const ForwardBackward result = forward_backward(WhatIfJob(spec).what_if);
  EXPECT_TRUE(std::isnan(result.correlation));
  EXPECT_EQ(result.forward_cv, 0);
}

TEST(Evidence, WithoutMicrobatchesNothingPairsUp) {
  JobSpec spec;
  std::vector<Row> rows = testing::make_job(spec);
  for (Row& row : rows) row.microbatch = -1;
  const ForwardBackward result = forward_backward(WhatIfJob(rows, spec.layout()).what_if);
  EXPECT_TRUE(std::isnan(result.correlation));
  EXPECT_TRUE(std::isnan(result.forward_cv));
}

TEST(Evidence, TheMedianOfAWorkerIsThatOfItsOwnOps) {
  JobSpec spec;
  spec.microbatches = 5;
  spec.duration = [](const Row& row) {
    // One outlier a step does not move the median.
    const std::int64_t base = 1'000'000 * (1 + row.stage + 2 * row.dp_rank);
    return row.kind == Kind::kForwardCompute && row.seq_id == 2 ? 50 * base : base;
  };
  const WhatIfJob job(spec);
  EXPECT_EQ(worker_medians_ns(job.what_if, Kind::kForwardCompute), (std::vector<double>{1e6, 2e6, 3e6, 4e6}));
  for (double median : worker_medians_ns(job.what_if, Kind::kGc)) EXPECT_TRUE(std::isnan(median));
}

}  // namespace
}  // namespace smon_rt::analysis
