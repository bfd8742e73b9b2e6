#include "analysis/lane_mask.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <vector>

#include "random_graphs.h"

namespace smon_rt::analysis {
namespace {

TEST(LaneMask, WithoutAnythingTakenOutItIsEverything) {
  const LaneMask none;
  EXPECT_TRUE(none.is_everything());
  EXPECT_TRUE(none.has(7, 3));
  EXPECT_EQ(none.of(7), nullptr);
  const LaneMask whole(2, 3);
  EXPECT_TRUE(whole.is_everything());
  EXPECT_EQ(whole.shapes(), (std::vector<std::uint32_t>{0, 0, 0}));
}

TEST(LaneMask, OnlyOpsThatSomeLaneLacksHaveARow) {
  LaneMask mask(3, 2);
  mask.take_out(1, 0);
  EXPECT_FALSE(mask.is_everything());
  EXPECT_EQ(mask.of(0), nullptr);
  ASSERT_NE(mask.of(1), nullptr);
  EXPECT_FALSE(mask.has(1, 0));
  EXPECT_TRUE(mask.has(1, 1));
}

TEST(LaneMask, LanesOfOneShapeHaveTheSameOpsAndOthersDoNot) {
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    const LaneMask mask = testing::random_mask(random, 12, 20);
    const std::vector<std::uint32_t> shapes = mask.shapes();
    for (std::size_t a = 0; a < 20; ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        bool is_same = true;
        for (OpIndex op = 0; op < 12; ++op) is_same &= mask.has(op, a) == mask.has(op, b);
        ASSERT_EQ(shapes[a] == shapes[b], is_same) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace smon_rt::analysis
