#include "record/interner.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace smon_rt {
namespace {

const std::vector<std::int32_t> kMembers = {0, 1, 2};

TEST(Interner, TheSameTextGivesTheSameNumberFromOneOn) {
  Interner interner;
  EXPECT_EQ(interner.name("loss"), 1);
  EXPECT_EQ(interner.name("grad norm"), 2);
  EXPECT_EQ(interner.name("loss"), 1);
  EXPECT_EQ(interner.name(""), 3);
}

TEST(Interner, TracksAreThreadDeviceAndStream) {
  Interner interner;
  EXPECT_EQ(interner.track(100, "main", 0, 7), 1);
  EXPECT_EQ(interner.track(100, "main", 0, 8), 2);
  EXPECT_EQ(interner.track(101, "main", 0, 7), 3);
  EXPECT_EQ(interner.track(100, "renamed", 0, 7), 1);
  const auto tracks = interner.tracks_since(0);
  ASSERT_EQ(tracks.size(), 3u);
  EXPECT_EQ(tracks[1].stream, 8u);
  EXPECT_EQ(tracks[2].thread_id, 101);
}

TEST(Interner, CommunicatorsDifferInNameDimensionOrMembers) {
  Interner interner;
  bool is_new = false;
  EXPECT_EQ(interner.communicator("g", "dp", kMembers, &is_new), 1);
  EXPECT_TRUE(is_new);
  EXPECT_EQ(interner.communicator("g", "dp", kMembers, &is_new), 1);
  EXPECT_FALSE(is_new);
  EXPECT_EQ(interner.communicator("g", "tp", kMembers), 2);
  EXPECT_EQ(interner.communicator("g", "dp", std::vector<std::int32_t>{0, 2, 1}), 3) << "order is part of it";
  EXPECT_EQ(interner.communicators_since(2).at(0).member_ranks, (std::vector<std::int32_t>{0, 2, 1}));
}

TEST(Interner, OnlyWhatIsNewIsHandedOut) {
  Interner interner;
  interner.name("a");
  interner.name("b");
  EXPECT_EQ(interner.names_since(0).size(), 2u);
  EXPECT_TRUE(interner.names_since(2).empty());
  EXPECT_TRUE(interner.names_since(100).empty());
  interner.name("c");
  const auto more = interner.names_since(2);
  ASSERT_EQ(more.size(), 1u);
  EXPECT_EQ(more[0].id, 3);
  EXPECT_EQ(more[0].text, "c");
}

TEST(Interner, AFullTableGivesZeroAndKeepsWhatItHas) {
  Interner interner;
  for (int i = 0; i < 0xffff; ++i) ASSERT_EQ(interner.name(std::to_string(i)), i + 1);
  EXPECT_EQ(interner.name("one too many"), 0);
  EXPECT_EQ(interner.name("17"), 18);
}

TEST(Interner, LongNamesFillTheTableByTheirBytes) {
  Interner interner;
  const auto long_name = [](std::size_t i) { return std::to_string(i) + std::string(1000, 'x'); };
  std::size_t count = 0;
  while (interner.name(long_name(count)) != 0) ++count;
  EXPECT_TRUE(interner.are_names_full());
  EXPECT_EQ(interner.names_since(0).size(), count);
  EXPECT_LE(count * 1000, Interner::kMaxNamesBytes);
  EXPECT_GT((count + 1) * 1010, Interner::kMaxNamesBytes);
  EXPECT_EQ(interner.name("a short one"), 0) << "full is full: who asks must not have to ask again";
  EXPECT_EQ(interner.name(long_name(7)), 8);
}

TEST(Interner, ThreadsAgree) {
  Interner interner;
  std::vector<std::vector<std::uint16_t>> ids(4);
  std::vector<std::thread> threads;
  for (auto& mine : ids) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) mine.push_back(interner.name("name " + std::to_string(i % 100)));
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& mine : ids) EXPECT_EQ(mine, ids[0]);
  EXPECT_EQ(interner.names_since(0).size(), 100u);
}

TEST(Interner, LongNamesAreCutBetweenCharacters) {
  Interner interner;
  const std::string long_name = "x" + std::string(10'000, 'y');
  EXPECT_EQ(interner.name(long_name), interner.name(long_name + "z"));
  std::string umlauts = "x";
  for (int i = 0; i < 2000; ++i) umlauts += "\u00fc";
  interner.name(umlauts);
  const std::vector<InternedName> names = interner.names_since(0);
  ASSERT_EQ(names.size(), 2u);
  EXPECT_EQ(names[0].text.size(), Interner::kMaxNameBytes);
  EXPECT_EQ(names[1].text.size(), Interner::kMaxNameBytes - 1) << "a character more would be half of it";
}

}  // namespace
}  // namespace smon_rt
