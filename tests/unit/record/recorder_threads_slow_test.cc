#include <gtest/gtest.h>

#include "recorder_threads.h"

namespace smon_rt {
namespace {

TEST(RecorderThreadsSlow, TenMillionSpansOfFourThreadsArriveInOrder) {
  const auto run = testing::run_producers(4, 2'500'000, /*is_paced=*/true);
  EXPECT_EQ(run.dropped, 0u);
  EXPECT_EQ(run.read, 10'000'000u);
}

}  // namespace
}  // namespace smon_rt
