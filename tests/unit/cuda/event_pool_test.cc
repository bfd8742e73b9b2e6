#include "cuda/event_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>
#include <vector>

namespace smon_rt::cuda {
namespace {

TEST(EventPool, GivesEachEventOnceAndThenNone) {
  EventPool pool(nullptr, 0, 3);
  std::set<std::uint32_t> taken;
  for (int i = 0; i < 3; ++i) taken.insert(pool.take().value());
  EXPECT_EQ(taken, (std::set<std::uint32_t>{0, 1, 2}));
  EXPECT_FALSE(pool.take());
  pool.put_back(1);
  EXPECT_EQ(pool.take(), 1u);
}

TEST(EventPool, AnEventIsFreeOnlyWhenItsLastOwnerReleasesIt) {
  EventPool pool(nullptr, 0, 1);
  const EventPool::Name name = pool.put_in_use(pool.take().value());
  EXPECT_TRUE(pool.retain(name));
  pool.release(name);
  EXPECT_TRUE(pool.is_in_use(name));
  EXPECT_FALSE(pool.take());
  pool.release(name);
  EXPECT_FALSE(pool.is_in_use(name));
  EXPECT_TRUE(pool.take());
}

TEST(EventPool, ANameIsNeverThatOfALaterUse) {
  EventPool pool(nullptr, 0, 1);
  const EventPool::Name first = pool.put_in_use(pool.take().value());
  pool.release(first);
  const EventPool::Name second = pool.put_in_use(pool.take().value());
  EXPECT_EQ(first.index, second.index);
  EXPECT_FALSE(pool.is_in_use(first));
  EXPECT_FALSE(pool.retain(first));
  pool.release(first);
  EXPECT_TRUE(pool.is_in_use(second)) << "a late release must not reach the next user's event";
  EXPECT_FALSE(pool.is_in_use({7, 1}));
  EXPECT_FALSE(pool.retain({7, 1}));
}

/// Takes, shares and releases events, and hands some to the thread that stands for the drain thread.
TEST(EventPool, ThreadsNeverHaveTheSameEvent) {
  constexpr int kThreads = 4, kRounds = 60'000;
  EventPool pool(nullptr, 0, 6);
  std::vector<std::atomic<int>> users(pool.size());
  std::atomic<int> clashes{0}, taken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        const auto index = pool.take();
        if (!index) continue;
        taken.fetch_add(1);
        if (users[*index].fetch_add(1) != 0) clashes.fetch_add(1);
        const EventPool::Name name = pool.put_in_use(*index);
        const bool is_shared = round % 2 == 0 && pool.retain(name);
        users[*index].fetch_sub(1);
        pool.release(name);
        if (is_shared) pool.release(name);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(clashes.load(), 0);
  EXPECT_GT(taken.load(), kRounds) << "the test tells nothing if the pool was empty most of the time";
  std::set<std::uint32_t> left;
  while (const auto index = pool.take()) left.insert(*index);
  EXPECT_EQ(left.size(), pool.size()) << "none is lost";
}

}  // namespace
}  // namespace smon_rt::cuda
