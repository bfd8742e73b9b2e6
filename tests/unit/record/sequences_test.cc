#include "record/sequences.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace smon_rt {
namespace {

TEST(Sequences, CountFromOnePerCommunicatorAndKind) {
  const auto sequences = std::make_unique<Sequences>();
  EXPECT_EQ(sequences->next(1, 0, Kind::kCollective), 1u);
  EXPECT_EQ(sequences->next(1, 5, Kind::kCollective), 2u) << "the root of a collective makes no difference";
  EXPECT_EQ(sequences->next(2, 0, Kind::kCollective), 1u);
  EXPECT_EQ(sequences->next(1, 0, Kind::kGradsAllReduce), 1u);
  EXPECT_EQ(sequences->next(1, 0, Kind::kCollective), 3u);
}

TEST(Sequences, SendsAndReceivesCountPerPeer) {
  const auto sequences = std::make_unique<Sequences>();
  EXPECT_EQ(sequences->next(1, 4, Kind::kForwardSend), 1u);
  EXPECT_EQ(sequences->next(1, 8, Kind::kForwardSend), 1u);
  EXPECT_EQ(sequences->next(1, 4, Kind::kForwardRecv), 1u);
  EXPECT_EQ(sequences->next(1, 4, Kind::kForwardSend), 2u);
}

TEST(Sequences, AFullTableGivesZeroCountsItAndGoesOnForWhatItHas) {
  const auto sequences = std::make_unique<Sequences>();
  std::uint64_t refused = 0;
  for (std::int32_t peer = 0; peer < 20'000; ++peer)
    refused += sequences->next(1, peer, Kind::kForwardSend) == 0 ? 1 : 0;
  EXPECT_GT(refused, 0u);
  EXPECT_LE(20'000 - refused, Sequences::kCapacity);
  EXPECT_GE(20'000 - refused, Sequences::kCapacity * 9 / 10);
  EXPECT_EQ(sequences->next(1, 0, Kind::kForwardSend), 2u);
}

TEST(Sequences, ThreadsThatMeetANewKeyAtOnceShareItsCount) {
  for (int round = 0; round < 50; ++round) {
    const auto sequences = std::make_unique<Sequences>();
    constexpr std::uint32_t kOps = 1000;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (std::uint32_t k = 0; k < kOps; ++k) {
          sequences->next(static_cast<std::uint16_t>(k % 16 + 1), 0, Kind::kCollective);
        }
      });
    }
    for (auto& thread : threads) thread.join();
    std::uint32_t sum = 0;
    for (std::uint16_t id = 1; id <= 16; ++id) sum += sequences->next(id, 0, Kind::kCollective) - 1;
    ASSERT_EQ(sum, 4 * kOps);
  }
}

}  // namespace
}  // namespace smon_rt
