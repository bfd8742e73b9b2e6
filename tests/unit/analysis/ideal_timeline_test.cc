#include "analysis/ideal_timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "random_graphs.h"
#include "what_if_job.h"

namespace smon_rt::analysis {
namespace {

using testing::JobSpec;
using testing::WhatIfJob;

OpTimes times_of(const WhatIfJob& job, const Scenario& scenario) {
  const std::size_t dp_size = job.what_if.dp_size();
  return replay_times(job.graph, dp_size, job.what_if.step_count(), scenario, &job.timing.takes_part);
}

std::vector<double> last_of_steps(const OpTimes& times, std::size_t op_count, std::size_t dp_size) {
  std::vector<double> last(times.lane_count / dp_size, 0);
  for (OpIndex op = 0; op < op_count; ++op) {
    for (std::size_t lane = 0; lane < times.lane_count; ++lane) {
      last[lane / dp_size] = std::max(last[lane / dp_size], times.ends(op)[lane]);
    }
  }
  return last;
}

TEST(IdealTimeline, TheRecordedScenarioGivesTheRecordedTimesBack) {
  for (testing::DpMode mode : {testing::DpMode::kNone, testing::DpMode::kPlain, testing::DpMode::kOverlapped}) {
    for (const auto& [dp_size, pp_size] : {std::pair(1, 1), {1, 4}, {4, 1}, {3, 3}}) {
      JobSpec spec = testing::uneven_job(dp_size, pp_size);
      spec.dp_mode = mode;
      spec.gc = true;
      const WhatIfJob job(spec);
      const OpTimes times = times_of(job, job.what_if.recorded());
      for (OpIndex op = 0; op < job.graph.size(); ++op) {
        for (std::size_t lane = 0; lane < times.lane_count; ++lane) {
          ASSERT_EQ(times.starts(op)[lane], job.table.starts_ns(op)[lane]) << describe(job.graph.op(op));
          ASSERT_EQ(times.ends(op)[lane], job.table.ends_ns(op)[lane]) << describe(job.graph.op(op));
        }
      }
    }
  }
}

TEST(IdealTimeline, ItsStepsEndWhenThoseOfTheIdealReplayDo) {
  const WhatIfJob job(testing::uneven_job());
  const OpTimes times = times_of(job, job.what_if.ideal());
  EXPECT_EQ(last_of_steps(times, job.graph.size(), job.what_if.dp_size()),
            job.what_if.simulator().replay(job.what_if.ideal()).last);
}

TEST(IdealTimeline, ReplaysAnyGraphAsTheSimulatorDoesLostOpsAndPartsIncluded) {
  std::mt19937 random(5);
  const std::vector<std::vector<std::uint32_t>> parts = {{0, 1, 0, 1}};
  constexpr std::size_t kDpSize = 4, kSteps = 3;
  for (int round = 0; round < 50; ++round) {
    const OpGraph graph = testing::random_graph(random, 25, parts);
    const LaneMask mask = testing::random_mask(random, graph.size(), kDpSize * kSteps);
    const std::vector<double> durations = testing::random_values(random, graph.size() * kDpSize * kSteps);
    const std::vector<double> delays = testing::random_values(random, graph.size() * kDpSize * kSteps, 100);
    Scenario scenario;
    scenario.durations = testing::rows_of(durations, graph.size());
    scenario.launch_delays = testing::rows_of(delays, graph.size());
    const OpTimes times = replay_times(graph, kDpSize, kSteps, scenario, &mask);
    const Simulator simulator(graph, kDpSize, kSteps, &mask);
    ASSERT_EQ(last_of_steps(times, graph.size(), kDpSize), simulator.replay(scenario).last) << "round " << round;
  }
}

TEST(IdealTimeline, RowsAreTheOpsOfEachLaneWithTheirIds) {
  const JobSpec spec = testing::uneven_job(2, 2);
  const std::vector<testing::Row> rows = testing::make_job(spec);
  const testing::ColumnStore store(rows);
  const auto job = measure_job(store.view(), spec.layout(), {});
  ASSERT_TRUE(job);
  const IdealTimeline timeline = ideal_timeline(*job, spec.layout());
  ASSERT_EQ(timeline.step.size(), rows.size());
  EXPECT_EQ(timeline.step.front(), job->steps.front());
  EXPECT_EQ(timeline.step.back(), job->steps.back());
  EXPECT_EQ(timeline.dp_rank.front(), 0);
  EXPECT_EQ(timeline.dp_rank.back(), 1);
  for (std::size_t row = 0; row < timeline.step.size(); ++row) {
    ASSERT_GE(timeline.start_ns[row], 0);
    ASSERT_GE(timeline.end_ns[row], timeline.start_ns[row]);
  }
}

}  // namespace
}  // namespace smon_rt::analysis
