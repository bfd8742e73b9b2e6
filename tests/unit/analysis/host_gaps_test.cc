#include "analysis/host_gaps.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "id_rows.h"

namespace smon_rt::analysis {
namespace {

using testing::IdJob;
using testing::IdRows;
using testing::layout_of;

// Launch delay and host gap of an op in the first lane, in microseconds.
struct Delay {
  double delay_us = 0;
  double gap_us = 0;
  bool operator==(const Delay&) const = default;
};

Delay delay_of(const IdJob& job, OpIndex op) {
  const OpTiming timing = measure_ops(job.lanes.table, job.graph, {0, false, true});
  const LaneBuffer gaps = host_gaps(job.lanes, job.graph, timing);
  const std::size_t cell = op * timing.lane_count;
  return {timing.launch_delays_ns.data()[cell] / 1e3, gaps.data()[cell] / 1e3};
}

TEST(HostGaps, ADelayInWhichNothingRanIsTheHosts) {
  IdRows made;
  made.compute({}, Kind::kForwardCompute, 0, 5, 10);
  made.compute({}, Kind::kBackwardCompute, 0, 17, 30);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(delay_of(job, job.op(Kind::kBackwardCompute, 0, 0)), (Delay{7, 7}));
}

// The second step contradicts that the backward waits for the reduction: what is left is a delay that nobody explains.
TEST(HostGaps, ADelayBesideCommunicationIsNotTheHostsForAsLongAsThatLasted) {
  for (std::uint8_t who : {std::uint8_t{1}, std::uint8_t{2}, std::uint8_t{0}}) {
    IdRows made;
    for (std::int64_t step : {0, 1}) {
      made.compute({0, 0, step}, Kind::kForwardCompute, 0, 0, 10);
      made.add({0, 0, step}, Kind::kCollective, 10, step == 0 ? 18 : 40).is_waited = who;
      made.compute({0, 0, step}, Kind::kBackwardCompute, 0, step == 0 ? 20 : 12, 41);
    }
    const IdJob job(made.rows, layout_of(1, 1));
    EXPECT_EQ(delay_of(job, job.op(Kind::kBackwardCompute, 0, 0)), (Delay{10, who == 0 ? 10.0 : 2.0}));
  }
}

TEST(HostGaps, ASendUnderWayIsNoReasonToWait) {
  IdRows made;
  made.compute({}, Kind::kForwardCompute, 0, 0, 10);
  made.add({}, Kind::kForwardSend, 10, 100, 0, 0).is_waited = 1;
  made.compute({}, Kind::kForwardCompute, 1, 15, 60);
  made.compute({}, Kind::kForwardCompute, 2, 64, 90);
  made.compute({}, Kind::kForwardCompute, 3, 110, 120);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(delay_of(job, job.op(Kind::kForwardCompute, 0, 1)), (Delay{5, 5}));
  EXPECT_EQ(delay_of(job, job.op(Kind::kForwardCompute, 0, 2)), (Delay{4, 4}));
  // From the end of the last compute on it may have been what the thread waited for.
  EXPECT_EQ(delay_of(job, job.op(Kind::kForwardCompute, 0, 3)), (Delay{20, 10}));
}

TEST(HostGaps, AnEarlyStartIsNoGap) {
  IdRows made;
  made.add({}, Kind::kForwardRecv, 0, 12, 0, 0);
  made.compute({}, Kind::kForwardCompute, 0, 10, 20);
  const IdJob job(made.rows, layout_of(1, 1));
  EXPECT_EQ(delay_of(job, job.op(Kind::kForwardCompute, 0, 0)), (Delay{-2, 0}));
}

}  // namespace
}  // namespace smon_rt::analysis
