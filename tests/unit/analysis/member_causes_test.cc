#include "analysis/member_causes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "analysis/compute_causes.h"
#include "analysis/statistics.h"
#include "analysis/what_if_question.h"
#include "planted_jobs.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::PlantedJob;
using testing::WhatIfJob;
using Workers = std::vector<std::pair<std::size_t, std::size_t>>;

const Progress kNoProgress;

bool is_compute(Kind kind) {
  return kind == Kind::kForwardCompute || kind == Kind::kBackwardCompute;
}

// Of computes that are `factor` times as long as they would be, on these workers, because a member is slow.
std::vector<MemberExcess> excess_of(const WhatIfJob& job, const Workers& workers, double factor) {
  std::vector<MemberExcess> excess;
  for (OpIndex op = 0; op < job.graph.size(); ++op) {
    if (!is_compute(job.graph.op(op).kind)) continue;
    for (std::size_t lane = 0; lane < job.timing.lane_count; ++lane) {
      const std::pair worker{lane % job.what_if.dp_size(), static_cast<std::size_t>(job.graph.op(op).stage)};
      if (std::find(workers.begin(), workers.end(), worker) == workers.end()) continue;
      excess.push_back({op, static_cast<std::uint32_t>(lane), job.timing.durations(op)[lane] * (1 - 1 / factor)});
    }
  }
  return excess;
}

struct Found {
  std::vector<CauseRemoval> members, computes;
  double step_ns = 0;

  double gain_ns(const CauseRemoval& removal) const { return step_ns - mean(removal.step_ns); }
  double gain_ns(const std::string& cause) const {
    for (const CauseRemoval& removal : computes) {
      if (removal.cause == cause) return gain_ns(removal);
    }
    return 0;
  }
};

Found causes_of(const WhatIfJob& job, const std::vector<MemberExcess>& excess) {
  const CauseBasis basis{.base_step_ns = job.table.step_times_ns(),
                         .recorded_step_ns = job.what_if.simulator().replay(job.what_if.recorded()).last,
                         .nodelay_step_ns = job.nodelay_ns()};
  ReplayCounter counter(kNoProgress, kMemberCauseReplays + kComputeCauseReplays);
  return {member_causes(job.what_if, excess, basis, counter),
          compute_causes(job.what_if, compute_factors(job.what_if, excess), basis, counter, excess),
          mean(basis.base_step_ns)};
}

double step_ns(const PlantedJob& planted) {
  return mean(WhatIfJob(planted.spec()).table.step_times_ns());
}

TEST(MemberCauses, ASlowMemberGivesBackWhatItsWorkerTakesLongerAndTheWorkerIsNotSlow) {
  PlantedJob planted;
  planted.microbatch = testing::lengths(0.2);
  const double without_ns = step_ns(planted);
  planted.worker = testing::slow_worker(2, 1, 1.7);
  const WhatIfJob job(planted.spec());
  const Found found = causes_of(job, excess_of(job, {{2, 1}}, 1.7));
  ASSERT_EQ(found.members.size(), 1U);
  EXPECT_EQ(found.members[0].cause, "tensor_parallel_member");
  EXPECT_EQ(std::pair(found.members[0].dp_rank, found.members[0].stage), std::pair(2, 1));
  EXPECT_EQ(found.members[0].workers, (Workers{{2, 1}}));
  EXPECT_NEAR(found.gain_ns(found.members[0]), found.step_ns - without_ns, 1e3);
  EXPECT_NEAR(found.gain_ns("worker"), 0, 1e3) << "it would be named twice";
  EXPECT_NEAR(found.gain_ns("noise"), 0, 0.02 * found.step_ns) << "what a member adds is no noise";
}

TEST(MemberCauses, AWorkerWhoseMembersAreAllSlowStaysAWorkerBesideOneWithASlowMember) {
  PlantedJob planted;
  planted.worker = [](const testing::Row& row) {
    return testing::slow_worker(0, 3, 2.0)(row) * testing::slow_worker(2, 1, 1.5)(row);
  };
  const WhatIfJob job(planted.spec());
  const Found found = causes_of(job, excess_of(job, {{2, 1}}, 1.5));
  ASSERT_EQ(found.members.size(), 1U);
  EXPECT_EQ(found.members[0].workers, (Workers{{2, 1}}));
  ASSERT_EQ(found.computes.front().cause, "worker");
  EXPECT_EQ(found.computes.front().workers, (Workers{{0, 3}}));
}

TEST(MemberCauses, MembersOfSeveralWorkersThatHideBehindEachOtherAreOneCause) {
  PlantedJob planted;
  const double without_ns = step_ns(planted);
  planted.worker = [](const testing::Row& row) {
    return testing::slow_worker(0, 1, 1.6)(row) * testing::slow_worker(2, 1, 1.6)(row);
  };
  const WhatIfJob job(planted.spec());
  const Found found = causes_of(job, excess_of(job, {{0, 1}, {2, 1}}, 1.6));
  ASSERT_EQ(found.members.size(), 1U);
  EXPECT_EQ(found.members[0].workers, (Workers{{0, 1}, {2, 1}}));
  EXPECT_NEAR(found.gain_ns(found.members[0]), found.step_ns - without_ns, 1e3);
}

TEST(MemberCauses, WithoutExcessThereIsNone) {
  const WhatIfJob job(PlantedJob{}.spec());
  EXPECT_TRUE(causes_of(job, {}).members.empty());
}

TEST(MemberCauses, AQuestionRepairsMembersAloneOrWithTheirWorker) {
  PlantedJob planted;
  const double healthy_ns = step_ns(planted);
  planted.worker = testing::slow_worker(1, 2, 1.5 * 1.2);
  const double slow_ns = step_ns(planted);
  planted.worker = testing::slow_worker(1, 2, 1.2);
  const double without_member_ns = step_ns(planted);
  planted.worker = testing::slow_worker(1, 2, 1.5 * 1.2);
  const WhatIfJob job(planted.spec());
  const std::vector<MemberExcess> excess = excess_of(job, {{1, 2}}, 1.5);
  Question member, worker, outside;
  member.fixed_members = {{1, 2}};
  worker.fixed_workers = {{1, 2}};
  outside.fixed_members = {{1, 9}};
  const auto answers = ask(job.what_if, {}, {member, worker}, {}, excess);
  ASSERT_TRUE(answers) << answers.error().message;
  EXPECT_NEAR(mean((*answers)[0].before_ns), slow_ns, 1e3);
  EXPECT_NEAR(mean((*answers)[0].after_ns), without_member_ns, 1e3);
  EXPECT_NEAR(mean((*answers)[1].after_ns), healthy_ns, 1e3);
  EXPECT_FALSE(ask(job.what_if, {}, {outside}, {}, excess));
}

TEST(MemberCauses, ExcessIsNeverMoreThanTheComputeTook) {
  const WhatIfJob job(PlantedJob{}.spec());
  std::vector<MemberExcess> excess = excess_of(job, {{0, 0}}, 2);
  ASSERT_FALSE(excess.empty());
  const OpIndex op = excess[0].op;
  excess[0].ns = 1e15;
  excess[1].ns = 0;
  const std::size_t count = excess.size();
  bound_by_durations(excess, job.timing);
  EXPECT_EQ(excess.size(), count - 1);
  EXPECT_EQ(excess[0].ns, job.timing.durations(op)[excess[0].lane]);
}

}  // namespace
}  // namespace smon_rt::analysis
