#include "analysis/order_merge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace smon_rt::analysis {
namespace {

using Sequence = std::vector<std::uint32_t>;

TEST(OrderMerge, SequencesWithHolesMergeIntoOneOrder) {
  OrderMerge merge(5);
  EXPECT_FALSE(merge.add(Sequence{0, 2, 4}));
  EXPECT_FALSE(merge.add(Sequence{0, 1, 4}));
  EXPECT_FALSE(merge.add(Sequence{1, 2, 3, 4}));
  EXPECT_EQ(merge.order(), (Sequence{0, 1, 2, 3, 4}));
}

TEST(OrderMerge, WhatComesRightAfterAnItemIsKnownFromEverySequence) {
  OrderMerge merge(4);
  merge.add(Sequence{0, 1, 3});
  merge.add(Sequence{0, 3});
  merge.add(Sequence{0, 1, 3});
  EXPECT_EQ(merge.next(0), (Sequence{1, 3}));
  EXPECT_EQ(merge.next(1), (Sequence{3}));
  EXPECT_TRUE(merge.next(3).empty());
}

TEST(OrderMerge, AContradictionIsNamedAndChangesNothing) {
  OrderMerge merge(4);
  merge.add(Sequence{0, 1, 2});
  const auto conflict = merge.add(Sequence{0, 3, 2, 1});
  ASSERT_TRUE(conflict);
  EXPECT_EQ(*conflict, std::pair(2u, 1u));
  EXPECT_EQ(merge.order(), (Sequence{0, 1, 2}));
  EXPECT_EQ(merge.next(0), (Sequence{1}));
  EXPECT_FALSE(merge.add(Sequence{1, 3, 2}));
  EXPECT_EQ(merge.order(), (Sequence{0, 1, 3, 2}));
}

TEST(OrderMerge, AContradictionOverSeveralSequencesIsOneToo) {
  OrderMerge merge(3);
  merge.add(Sequence{0, 1});
  merge.add(Sequence{1, 2});
  EXPECT_TRUE(merge.add(Sequence{2, 0}));
}

TEST(OrderMerge, PartsOfOneOrderAlwaysMergeAndEachKeepsItsOwn) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    Sequence truth(1 + random() % 30);
    std::iota(truth.begin(), truth.end(), 0u);
    std::shuffle(truth.begin(), truth.end(), random);
    OrderMerge merge(truth.size());
    std::vector<Sequence> parts;
    for (int i = 0; i < 6; ++i) {
      Sequence part;
      std::copy_if(truth.begin(), truth.end(), std::back_inserter(part),
                   [&](std::uint32_t) { return random() % 3 > 0; });
      ASSERT_FALSE(merge.add(part)) << "round " << round;
      parts.push_back(part);
    }
    for (const Sequence& part : parts) {
      std::size_t next = 0;
      for (std::uint32_t item : merge.order()) next += next < part.size() && part[next] == item ? 1 : 0;
      ASSERT_EQ(next, part.size()) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace smon_rt::analysis
