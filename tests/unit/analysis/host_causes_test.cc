#include "analysis/host_causes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "analysis/statistics.h"
#include "id_rows.h"

namespace smon_rt::analysis {
namespace {

using testing::At;
using testing::IdJob;
using testing::IdRows;
using testing::layout_of;

const Progress kNoProgress;

// A job taken apart by the rules of ids; times in microseconds.
class HostJob {
 public:
  HostJob(const std::vector<testing::Row>& rows, const JobLayout& layout)
      : job_(rows, layout),
        timing_(measure_ops(job_.lanes.table, job_.graph, {0, false, true})),
        explained_(explained_delays(job_.lanes, timing_)),
        what_if_(job_.graph, timing_, static_cast<std::size_t>(layout.dp_size),
                 static_cast<std::size_t>(layout.pp_size)),
        recorded_ns_(what_if_.simulator().replay(what_if_.recorded()).last) {
    const std::vector<double> nodelay_ns = what_if_.simulator().replay(what_if_.nodelay()).last;
    ReplayCounter counter(kNoProgress, kHostCauseReplays);
    causes_ = host_causes(what_if_, explained_, {recorded_ns_, recorded_ns_, nodelay_ns}, counter);
  }

  const std::vector<ExplainedDelay>& explained() const { return explained_; }
  double recorded_us() const { return mean(recorded_ns_) / 1e3; }

  std::vector<CauseRemoval> of(const std::string& cause) const {
    std::vector<CauseRemoval> found;
    for (const CauseRemoval& removal : causes_) {
      if (removal.cause == cause) found.push_back(removal);
    }
    return found;
  }
  double gain_us(const CauseRemoval& removal) const { return (mean(recorded_ns_) - mean(removal.step_ns)) / 1e3; }

 private:
  IdJob job_;
  OpTiming timing_;
  std::vector<ExplainedDelay> explained_;
  WhatIf what_if_;
  std::vector<double> recorded_ns_;
  std::vector<CauseRemoval> causes_;
};

// One step of some dp ranks: parameters are gathered, computes run, gradients are reduced, the optimizer ends it.
// `ready_us`: when each rank's gather starts. `late_us`: how long its forward comes after the gather.
void add_step(IdRows& made, std::int64_t step, const std::vector<int>& ready_us, const std::vector<int>& late_us) {
  int gathered = 0, computed = 0;
  for (int ready : ready_us) gathered = std::max(gathered, ready + 5);
  for (int late : late_us) computed = std::max(computed, gathered + late + 30);
  for (std::size_t dp_rank = 0; dp_rank < ready_us.size(); ++dp_rank) {
    const At at{static_cast<int>(dp_rank), 0, step};
    const int forward = gathered + late_us[dp_rank];
    made.add(at, Kind::kParamsAllGather, ready_us[dp_rank], gathered, -1, 0, 10 * step + 1).is_waited = 1;
    made.compute(at, Kind::kForwardCompute, 0, forward, forward + 10);
    made.compute(at, Kind::kBackwardCompute, 0, forward + 10, forward + 30);
    made.add(at, Kind::kGradsAllReduce, forward + 30, computed + 5, -1, 0, 10 * step + 2).is_waited = 1;
    made.add(at, Kind::kOptimizer, computed + 5, computed + 15);
  }
}

TEST(HostCauses, LoadingOfDataTakesWhatWaitedForItWithIt) {
  IdRows made;
  add_step(made, 0, {0, 20}, {0, 0});
  made.add({1, 0, 0}, Kind::kDataLoading, 0, 20);
  const HostJob job(made.rows, layout_of(2, 1));
  const auto found = job.of("data_loading");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].dp_rank, 1);
  EXPECT_EQ(found[0].stage, 0);
  // The gather does not wait for the loading by the graph: it came late for it.
  EXPECT_DOUBLE_EQ(job.gain_us(found[0]), 20);
  ASSERT_EQ(job.of("host_launch_delay").size(), 1u);
  EXPECT_DOUBLE_EQ(job.gain_us(job.of("host_launch_delay")[0]), 0);
}

// In each step one of two of four dp ranks waits for its data, and all for it.
IdRows turns_of(int steps) {
  IdRows made;
  for (int step = 0; step < steps; ++step) {
    std::vector<int> ready_us = {0, 0, 0, 0};
    const int late = step % 2 == 0 ? 1 : 3;
    ready_us[static_cast<std::size_t>(late)] = 20;
    add_step(made, step, ready_us, {0, 0, 0, 0});
    made.add({late, 0, step}, Kind::kDataLoading, 0, 20);
  }
  return made;
}

TEST(HostCauses, SeveralWorkersThatTakeTurnsHaveTheirPlaces) {
  const HostJob job(turns_of(6).rows, layout_of(4, 1));
  ASSERT_EQ(job.of("data_loading").size(), 1u);
  CauseRemoval found = job.of("data_loading")[0];
  std::sort(found.workers.begin(), found.workers.end());
  EXPECT_EQ(found.workers, (std::vector<std::pair<std::size_t, std::size_t>>{{1, 0}, {3, 0}}));
  EXPECT_EQ(found.stage, 0);
  EXPECT_DOUBLE_EQ(job.gain_us(found), 20);
}

TEST(HostCauses, WhoWasMetTwiceIsNoPlace) {
  const HostJob job(turns_of(4).rows, layout_of(4, 1));
  ASSERT_EQ(job.of("data_loading").size(), 1u);
  EXPECT_TRUE(job.of("data_loading")[0].workers.empty());
  EXPECT_EQ(job.of("data_loading")[0].dp_rank, -1);
}

TEST(HostCauses, WorkersThatWereNotRecordedAreNoYardstick) {
  IdRows made;
  for (int step = 0; step < 6; ++step) {
    const int late = step % 2 == 0 ? 0 : 1;
    add_step(made, step, {late == 0 ? 20 : 0, late == 1 ? 20 : 0}, {0, 0});
    made.add({late, 0, step}, Kind::kDataLoading, 0, 20);
  }
  const HostJob job(made.rows, layout_of(4, 1));
  ASSERT_EQ(job.of("data_loading").size(), 1u);
  EXPECT_EQ(job.of("data_loading")[0].dp_rank, -1);
  EXPECT_TRUE(job.of("data_loading")[0].workers.empty());
}

TEST(HostCauses, SeveralLateWorkersHaveTheirPlaces) {
  IdRows made;
  for (int step = 0; step < 3; ++step) {
    std::vector<int> late_us(6, 0);
    late_us[static_cast<std::size_t>(2 * step)] = 40;
    add_step(made, step, {0, 0, 0, 0, 0, 0}, late_us);
  }
  const HostJob job(made.rows, layout_of(6, 1));
  ASSERT_EQ(job.of("host_launch_delay").size(), 1u);
  CauseRemoval found = job.of("host_launch_delay")[0];
  std::sort(found.workers.begin(), found.workers.end());
  EXPECT_EQ(found.workers, (std::vector<std::pair<std::size_t, std::size_t>>{{0, 0}, {2, 0}, {4, 0}}));
  EXPECT_DOUBLE_EQ(job.gain_us(found), 40);
}

TEST(HostCauses, WhatAllWaitForHasNoPlace) {
  IdRows made;
  add_step(made, 0, {20, 20}, {0, 0});
  for (int dp_rank : {0, 1}) made.add({dp_rank, 0, 0}, Kind::kDataLoading, 0, 20);
  const HostJob job(made.rows, layout_of(2, 1));
  ASSERT_EQ(job.of("data_loading").size(), 1u);
  EXPECT_EQ(job.of("data_loading")[0].dp_rank, -1);
  EXPECT_DOUBLE_EQ(job.gain_us(job.of("data_loading")[0]), 20);
}

// Only the last to come holds up the gather, but it loads no longer than the others.
TEST(HostCauses, WhatTakesAsLongElsewhereHasNoPlace) {
  IdRows made;
  add_step(made, 0, {20, 20, 60}, {0, 0, 0});
  for (int dp_rank : {0, 1, 2}) made.add({dp_rank, 0, 0}, Kind::kDataLoading, 0, 20);
  made.add({2, 0, 0}, Kind::kGc, 20, 60);
  const HostJob job(made.rows, layout_of(3, 1));
  ASSERT_EQ(job.of("data_loading").size(), 1u);
  EXPECT_EQ(job.of("data_loading")[0].dp_rank, -1);
  EXPECT_DOUBLE_EQ(job.gain_us(job.of("data_loading")[0]), 20);
  ASSERT_EQ(job.of("gc").size(), 1u);
  EXPECT_EQ(job.of("gc")[0].dp_rank, 2);
}

TEST(HostCauses, ACollectionInsideAComputeIsNoneOfIt) {
  IdRows made;
  add_step(made, 0, {0, 0, 0}, {0, 0, 0});
  for (testing::Row& row : made.rows) {
    if (row.kind == Kind::kForwardCompute && row.dp_rank == 2) row.duration_ns += 40'000;
    const bool is_after = row.kind == Kind::kBackwardCompute || row.kind == Kind::kGradsAllReduce;
    if (is_after && row.dp_rank == 2) row.start_ns += 40'000;
    if (row.kind == Kind::kOptimizer) row.start_ns += 40'000;
    if (row.kind == Kind::kGradsAllReduce && row.dp_rank != 2) row.duration_ns += 40'000;
  }
  made.add({2, 0, 0}, Kind::kGc, 8, 48);
  const HostJob job(made.rows, layout_of(3, 1));
  ASSERT_EQ(job.of("gc").size(), 1u);
  EXPECT_EQ(job.of("gc")[0].dp_rank, 2);
  EXPECT_DOUBLE_EQ(job.gain_us(job.of("gc")[0]), 40);
  EXPECT_EQ(job.of("gc")[0].workers, (std::vector<std::pair<std::size_t, std::size_t>>{{2, 0}}));
}

TEST(HostCauses, BothPartsOfACheckpointAreOne) {
  IdRows made;
  add_step(made, 0, {50, 50}, {0, 0});
  for (int dp_rank : {0, 1}) {
    made.add({dp_rank, 0, 0}, Kind::kCheckpointSnapshot, 0, 20);
    made.add({dp_rank, 0, 0}, Kind::kCheckpointWait, 20, 50);
  }
  const HostJob job(made.rows, layout_of(2, 1));
  ASSERT_EQ(job.of("checkpoint").size(), 1u);
  EXPECT_DOUBLE_EQ(job.gain_us(job.of("checkpoint")[0]), 50);
  EXPECT_TRUE(job.of("data_loading").empty());
}

TEST(HostCauses, LateLaunchesOfOneWorkerAreThatWorkersDownToItsPeers) {
  IdRows made;
  add_step(made, 0, {0, 0, 0}, {1, 1, 31});
  const HostJob job(made.rows, layout_of(3, 1));
  const auto found = job.of("host_launch_delay");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].dp_rank, 2);
  EXPECT_DOUBLE_EQ(job.gain_us(found[0]), 30);
}

TEST(HostCauses, OneWorkersPartOfLateLaunchesIsACauseBesideTheRest) {
  IdRows made;
  add_step(made, 0, {0, 0, 0}, {20, 20, 50});
  const HostJob job(made.rows, layout_of(3, 1));
  const auto found = job.of("host_launch_delay");
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].dp_rank, -1);
  EXPECT_DOUBLE_EQ(job.gain_us(found[0]), 20);
  EXPECT_EQ(found[1].dp_rank, 2);
  EXPECT_DOUBLE_EQ(job.gain_us(found[1]), 30);
}

TEST(HostCauses, LateLaunchesOfAllHaveNoPlace) {
  IdRows made;
  add_step(made, 0, {0, 0, 0}, {20, 20, 20});
  const HostJob job(made.rows, layout_of(3, 1));
  const auto found = job.of("host_launch_delay");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].dp_rank, -1);
  EXPECT_DOUBLE_EQ(job.gain_us(found[0]), 20);
}

TEST(ExplainedDelays, OfWorkAtTheSameTimeEachMomentCountsOnce) {
  IdRows made;
  made.compute({}, Kind::kForwardCompute, 0, 0, 10);
  made.compute({}, Kind::kBackwardCompute, 0, 10, 20);
  made.add({}, Kind::kGc, 22, 30);
  made.add({}, Kind::kCheckpointWait, 26, 34);
  made.add({}, Kind::kGradsAllReduce, 40, 50, -1, 0, 7).is_waited = 1;
  made.add({}, Kind::kOptimizer, 50, 60);
  const HostJob job(made.rows, layout_of(1, 1));
  double gc = 0, checkpoint = 0;
  for (const ExplainedDelay& delay : job.explained()) {
    gc = std::max(gc, delay.by_work_ns[static_cast<std::size_t>(HostWork::kGc)]);
    checkpoint = std::max(checkpoint, delay.by_work_ns[static_cast<std::size_t>(HostWork::kCheckpoint)]);
  }
  EXPECT_LE(gc + checkpoint, 12'000);
}

}  // namespace
}  // namespace smon_rt::analysis
