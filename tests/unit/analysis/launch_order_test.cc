#include "analysis/launch_order.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "id_rows.h"

namespace smon_rt::analysis {
namespace {

using testing::At;
using testing::ColumnStore;
using testing::IdRows;

// Kind, start and end in microseconds, whether it runs in the compute stream.
using Seen = std::tuple<Kind, std::int64_t, std::int64_t, bool>;

// The launches of dp rank 0, stage 0, step 0.
std::vector<Seen> launches_of(const IdRows& made, int dp_size = 1) {
  const ColumnStore store(made.rows);
  const std::vector<std::uint32_t> step_of_row(made.rows.size(), 0);
  const LaunchOrder order(store.view(), testing::layout_of(dp_size, 1), step_of_row, 1);
  std::vector<Seen> seen;
  for (const Launch& launch : order.of(0)) {
    seen.emplace_back(launch.kind, launch.start_ns / 1000, launch.end_ns / 1000, launch.is_in_stream);
  }
  return seen;
}

TEST(LaunchOrder, OpsComeInTheOrderOfTheirStartsComputesAndHostWorkInOneStream) {
  IdRows made;
  made.compute({}, Kind::kForwardCompute, 0, 10, 20);
  made.add({}, Kind::kDataLoading, 0, 10);
  made.add({}, Kind::kForwardSend, 20, 25, 0, 0);
  made.add({}, Kind::kStep, 0, 100);
  EXPECT_EQ(launches_of(made), (std::vector<Seen>{{Kind::kDataLoading, 0, 10, true},
                                                  {Kind::kForwardCompute, 10, 20, true},
                                                  {Kind::kForwardSend, 20, 25, false}}));
}

TEST(LaunchOrder, ACollectionInsideAComputeIsPutBehindIt) {
  IdRows made;
  made.compute({}, Kind::kForwardCompute, 0, 0, 100);
  made.add({}, Kind::kGc, 20, 50);
  EXPECT_EQ(launches_of(made), (std::vector<Seen>{{Kind::kForwardCompute, 0, 70, true}, {Kind::kGc, 70, 100, true}}));
}

TEST(LaunchOrder, HostWorkInsideHostWorkCountsOnce) {
  IdRows made;
  made.compute({}, Kind::kForwardCompute, 0, 0, 100);
  made.add({}, Kind::kDataLoading, 10, 50);
  made.add({}, Kind::kGc, 20, 30);
  EXPECT_EQ(launches_of(made),
            (std::vector<Seen>{
                {Kind::kForwardCompute, 0, 70, true}, {Kind::kDataLoading, 70, 90, true}, {Kind::kGc, 90, 100, true}}));
}

TEST(LaunchOrder, OfCommunicationInsideAComputeOnlyTheWaitForLatePeersIsTakenOut) {
  IdRows made;
  made.compute({0, 0}, Kind::kBackwardCompute, 0, 0, 100);
  made.add({0, 0}, Kind::kGradsAllReduce, 40, 70, -1, -1, 5);
  made.add({0, 0}, Kind::kGradsAllReduce, 50, 98, -1, -1, 6);
  made.compute({1, 0}, Kind::kBackwardCompute, 0, 0, 100);
  made.add({1, 0}, Kind::kGradsAllReduce, 60, 70, -1, -1, 5);
  made.add({1, 0}, Kind::kGradsAllReduce, 90, 98, -1, -1, 6);
  // It waited from 50, when it launched the last, for the peer's first, and from 70 for the second.
  EXPECT_EQ(launches_of(made, 2), (std::vector<Seen>{{Kind::kBackwardCompute, 0, 70, true},
                                                     {Kind::kGradsAllReduce, 70, 80, false},
                                                     {Kind::kGradsAllReduce, 80, 100, false}}));
}

TEST(LaunchOrder, OfACommunicationThatOutlastsTheComputeItWasLaunchedInOnlyTheRestCounts) {
  IdRows made;
  made.compute({}, Kind::kBackwardCompute, 0, 0, 100);
  made.add({}, Kind::kGradsReduceScatter, 40, 130, -1, 0);
  EXPECT_EQ(launches_of(made),
            (std::vector<Seen>{{Kind::kBackwardCompute, 0, 100, true}, {Kind::kGradsReduceScatter, 100, 130, false}}));
}

TEST(LaunchOrder, ACommunicationLaunchedWithAComputeOrAfterItHasItsOwnTimes) {
  IdRows made;
  made.compute({}, Kind::kBackwardCompute, 0, 0, 100);
  made.add({}, Kind::kGradsReduceScatter, 0, 130, -1, 0);
  made.add({}, Kind::kGradsReduceScatter, 100, 140, -1, 0);
  EXPECT_EQ(launches_of(made), (std::vector<Seen>{{Kind::kBackwardCompute, 0, 100, true},
                                                  {Kind::kGradsReduceScatter, 0, 130, false},
                                                  {Kind::kGradsReduceScatter, 100, 140, false}}));
}

TEST(LaunchOrder, ACommunicationTheComputeDidNotWaitForIsNotInsideIt) {
  IdRows made;
  made.compute({}, Kind::kBackwardCompute, 0, 0, 100);
  made.add({}, Kind::kCollective, 40, 41);
  const ColumnStore store(made.rows);
  OpColumns columns = store.view();
  for (std::uint8_t who : {0, 1, 2}) {
    const std::vector<std::uint8_t> is_waited = {who, who};
    columns.is_waited = is_waited;
    const std::vector<std::uint32_t> step_of_row(2, 0);
    const LaunchOrder order(columns, testing::layout_of(1, 1), step_of_row, 1);
    EXPECT_EQ(order.of(0)[1].was_inside, who == OpColumns::kWaitedByCompute);
  }
}

TEST(LaunchOrder, WhatAnOptimizerHadInsideComesBeforeIt) {
  IdRows made;
  made.add({}, Kind::kOptimizer, 0, 100);
  made.add({}, Kind::kOptimizerClipMainGrad, 20, 30);
  EXPECT_EQ(launches_of(made),
            (std::vector<Seen>{{Kind::kOptimizerClipMainGrad, 0, 10, true}, {Kind::kOptimizer, 10, 100, true}}));
}

TEST(LaunchOrder, ASpanOfTheUserAroundComputesIsLeftOutOneBetweenThemIsHostWork) {
  IdRows made;
  made.add({}, Kind::kUser, 0, 100);
  made.compute({}, Kind::kForwardCompute, 0, 10, 20);
  made.add({}, Kind::kUser, 20, 30);
  made.compute({}, Kind::kForwardCompute, 1, 30, 40);
  EXPECT_EQ(launches_of(made), (std::vector<Seen>{{Kind::kForwardCompute, 10, 20, true},
                                                  {Kind::kUser, 20, 30, true},
                                                  {Kind::kForwardCompute, 30, 40, true}}));
}

}  // namespace
}  // namespace smon_rt::analysis
