#include "analysis/comm_causes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "analysis/statistics.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::Row;
using testing::WhatIfJob;

const Progress kNoProgress;

bool is_message(const Row& row) {
  return row.kind == Kind::kForwardSend || row.kind == Kind::kForwardRecv || row.kind == Kind::kBackwardSend ||
         row.kind == Kind::kBackwardRecv;
}

bool is_between(const Row& row, int low, int high) {
  const bool goes_up = row.kind == Kind::kForwardSend || row.kind == Kind::kBackwardRecv;
  const int peer = row.stage + (goes_up ? 1 : -1);
  return is_message(row) && std::min(row.stage, peer) == low && std::max(row.stage, peer) == high;
}

JobSpec job_of(int dp_size, int pp_size, const std::function<bool(const Row&)>& is_slow) {
  JobSpec spec;
  spec.dp_size = dp_size;
  spec.pp_size = pp_size;
  spec.microbatches = 6;
  spec.duration = [is_slow](const Row& row) { return testing::varied_duration(row) * (is_slow(row) ? 20 : 1); };
  return spec;
}

double step_ns(const JobSpec& spec) {
  return mean(WhatIfJob(spec).table.step_times_ns());
}

CauseBasis basis_of(const WhatIf& what_if, const std::vector<double>& recorded_ns) {
  return {recorded_ns, recorded_ns, what_if.simulator().replay(what_if.nodelay()).last};
}

struct Found {
  CauseRemoval removal;
  double gain_ns = 0;
};

Found find(const JobSpec& spec, const std::string& cause) {
  const WhatIfJob job(spec);
  const std::vector<double> recorded_ns = job.what_if.simulator().replay(job.what_if.recorded()).last;
  ReplayCounter counter(kNoProgress, kCommCauseReplays);
  for (CauseRemoval& removal : comm_causes(job.what_if, basis_of(job.what_if, recorded_ns), counter)) {
    if (removal.cause == cause) return {removal, mean(recorded_ns) - mean(removal.step_ns)};
  }
  return {};
}

const auto kNothing = [](const Row&) { return false; };

TEST(CommCauses, ASlowLinkOfOnePipelineHasItsPlace) {
  const auto is_slow = [](const Row& row) { return row.dp_rank == 1 && is_between(row, 1, 2); };
  const Found found = find(job_of(3, 4, is_slow), "pp_communication");
  EXPECT_EQ(found.removal.dp_rank, 1);
  EXPECT_EQ(found.removal.stage, 1);
  EXPECT_EQ(found.removal.peer_stage, 2);
  const double truth = step_ns(job_of(3, 4, is_slow)) - step_ns(job_of(3, 4, kNothing));
  EXPECT_NEAR(found.gain_ns, truth, 0.05 * truth);
}

TEST(CommCauses, OfTwoLinksTheSlowOneHasItsPlace) {
  const auto is_slow = [](const Row& row) { return is_between(row, 0, 1); };
  const Found found = find(job_of(1, 3, is_slow), "pp_communication");
  EXPECT_EQ(found.removal.stage, 0);
  EXPECT_EQ(found.removal.peer_stage, 1);
  const double truth = step_ns(job_of(1, 3, is_slow)) - step_ns(job_of(1, 3, kNothing));
  EXPECT_NEAR(found.gain_ns, truth, 0.1 * truth);
}

TEST(CommCauses, SeveralSlowLinksHaveTheirPlaces) {
  for (const int second : {1, 2}) {
    const auto is_slow = [second](const Row& row) {
      return (row.dp_rank == 0 && is_between(row, 1, 2)) || (row.dp_rank == 2 && is_between(row, second, second + 1));
    };
    const Found found = find(job_of(4, 4, is_slow), "pp_communication");
    std::vector<std::vector<int>> links;
    for (const CauseLink& link : found.removal.links) links.push_back({link.dp_rank, link.stage, link.peer_stage});
    std::sort(links.begin(), links.end());
    EXPECT_EQ(links, (std::vector<std::vector<int>>{{0, 1, 2}, {2, second, second + 1}}));
    EXPECT_EQ(found.removal.dp_rank, found.removal.links.front().dp_rank);
    EXPECT_EQ(found.removal.stage, found.removal.links.front().stage);
    const double truth = step_ns(job_of(4, 4, is_slow)) - step_ns(job_of(4, 4, kNothing));
    EXPECT_NEAR(found.gain_ns, truth, 0.05 * truth);
  }
}

TEST(CommCauses, SlowBetweenTwoStagesEverywhereIsNoSingleLink) {
  const auto is_slow = [](const Row& row) { return is_between(row, 1, 2); };
  const Found found = find(job_of(3, 4, is_slow), "pp_communication");
  EXPECT_EQ(found.removal.dp_rank, -1);
  EXPECT_EQ(found.removal.stage, 1);
  EXPECT_EQ(found.removal.peer_stage, 2);
  const double truth = step_ns(job_of(3, 4, is_slow)) - step_ns(job_of(3, 4, kNothing));
  EXPECT_NEAR(found.gain_ns, truth, 0.05 * truth);
}

TEST(CommCauses, ALinkThatIsSlowEverywhereIsNotThePipelinesThatHasASlowWorker) {
  const auto is_slow = [](const Row& row) { return is_between(row, 1, 2); };
  JobSpec spec = job_of(4, 4, is_slow);
  spec.duration = [of = spec.duration](const Row& row) {
    const bool is_compute = row.kind == Kind::kForwardCompute || row.kind == Kind::kBackwardCompute;
    return of(row) * (is_compute && row.dp_rank == 3 && row.stage == 2 ? 3 : 1);
  };
  const Found found = find(spec, "pp_communication");
  EXPECT_EQ(found.removal.dp_rank, -1);
  EXPECT_EQ(found.removal.stage, 1);
  EXPECT_EQ(found.removal.peer_stage, 2);
}

TEST(CommCauses, WhatIsSlowOnMostLinksHasNoPlace) {
  const auto is_slow = [](const Row& row) {
    return is_between(row, row.dp_rank, row.dp_rank + 1) || is_between(row, row.dp_rank + 2, row.dp_rank + 3) ||
           is_between(row, 4, 5);
  };
  const Found found = find(job_of(2, 6, is_slow), "pp_communication");
  EXPECT_EQ(found.removal.stage, -1);
  EXPECT_TRUE(found.removal.links.empty());
}

TEST(CommCauses, ADataParallelGroupIsComparedWithThoseOfOtherStages) {
  const auto is_slow = [](const Row& row) {
    return row.stage == 0 && (row.kind == Kind::kParamsAllGather || row.kind == Kind::kGradsReduceScatter);
  };
  for (int pp_size : {2, 3}) {
    const Found found = find(job_of(4, pp_size, is_slow), "dp_communication");
    EXPECT_EQ(found.removal.stage, 0);
    EXPECT_EQ(found.removal.dp_rank, -1);
    ASSERT_EQ(found.removal.detail.size(), 1u);
    EXPECT_GT(found.removal.detail.front().second, 10);
    const double truth = step_ns(job_of(4, pp_size, is_slow)) - step_ns(job_of(4, pp_size, kNothing));
    EXPECT_NEAR(found.gain_ns, truth, 0.1 * truth) << "pp " << pp_size;
  }
}

TEST(CommCauses, WithoutSlowCommunicationThereIsNoPlace) {
  for (const char* cause : {"pp_communication", "dp_communication"}) {
    const Found found = find(job_of(3, 3, kNothing), cause);
    EXPECT_EQ(found.removal.cause, cause);
    EXPECT_EQ(found.removal.stage, -1);
  }
}

TEST(CommCauses, StopsWhenAsked) {
  const WhatIfJob job(job_of(2, 3, kNothing));
  const std::vector<double> recorded_ns = job.what_if.simulator().replay(job.what_if.recorded()).last;
  const Progress stops = [](int, int) { return false; };
  ReplayCounter counter(stops, kCommCauseReplays);
  EXPECT_TRUE(comm_causes(job.what_if, basis_of(job.what_if, recorded_ns), counter).empty());
}

}  // namespace
}  // namespace smon_rt::analysis
