// Several threads at once, as NCCL has them: those of the job, one proxy thread a communicator.

#include <array>
#include <atomic>
#include <barrier>
#include <cstdint>
#include <thread>
#include <vector>

#include "nccl_library.h"

namespace smon_rt::testing {
namespace {

using nccl::EventState;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kEvents = 1'000'000;
#else
constexpr int kEvents = 10'000'000;
#endif
constexpr int kThreads = 4;
constexpr int kChannelCount = 64;
// An op, its call, its group: 6. 2 transfers, 3 events each, of 4 steps, 5 events each.
constexpr int kEventsAnOp = 6 + 2 * (3 + 4 * 5);

class NcclThreads : public NcclTest {};

template <typename Event>
void run_ops(const Nccl<Event>& nccl, void* context, int events) {
  for (int i = 0; i < events / kEventsAnOp; ++i) {
    void* group = nccl.call_group(context);
    void* call = nccl.call(context, group);
    void* op = nccl.coll(context, call, static_cast<std::uint64_t>(i));
    nccl.stop(op);
    nccl.stop(call);
    nccl.stop(group);
    nccl.transfer(context, op, i % kChannelCount, true, 4, 100);
    nccl.transfer(context, op, i % kChannelCount, false, 4, 100);
  }
}

TEST_F(NcclThreads, TenMillionEventsOnSixtyFourChannelsAreAllCounted) {
  // A thread that loses the processor must not fall thousands of ops behind between an op and its transfers: the job
  // cannot either, since the GPU takes at most about a thousand launches ahead.
  constexpr int kRounds = kEvents / 50'000;
  std::barrier together(kThreads);
  std::array<void*, kThreads> contexts{};
  int mask = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Nccl<nccl::EventV6> nccl(library_);
      void* context = nccl.init(static_cast<std::uint64_t>(100 + i), 2, &mask);
      for (int round = 0; round < kRounds; ++round) {
        run_ops(nccl, context, kEvents / kThreads / kRounds);
        together.arrive_and_wait();
      }
      contexts[static_cast<std::size_t>(i)] = context;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::vector<ArenaChannel> all_channels = arena().channels;
  for (void* context : contexts) Nccl<nccl::EventV6>(library_).finalize(context);
  const std::uint64_t ops = grown(&smon_status::nccl_ops);
  EXPECT_EQ(ops, static_cast<std::uint64_t>(kEvents / kThreads / kRounds / kEventsAnOp * kRounds * kThreads));
  std::uint64_t begun = 0;
  std::uint64_t moved = 0;
  std::uint64_t done = 0;
  std::size_t channels = 0;
  for (const ArenaChannel& channel : all_channels) {
    ++channels;
    begun += channel.begun;
    moved += channel.moved;
    done += channel.done;
  }
  EXPECT_EQ(channels, std::size_t{kThreads} * kChannelCount * 2);
  EXPECT_EQ(begun, ops * 8);
  EXPECT_EQ(moved, ops * 8);
  EXPECT_EQ(done, ops * 8);
  EXPECT_EQ(grown(&smon_status::nccl_stale_handles), 0u);
  EXPECT_EQ(grown(&smon_status::nccl_foreign_handles), 0u);
  EXPECT_EQ(grown(&smon_status::nccl_lost_ends), 0u);
  EXPECT_EQ(grown(&smon_status::nccl_untracked), 0u);
}

TEST_F(NcclThreads, CommunicatorsOpenAndCloseWhileOthersRunAndMasksFlip) {
  std::atomic<bool> must_stop{false};
  std::array<int, kThreads> masks{};  // of libraries that stay loaded: whoever flips them may be a little late
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      const Nccl<nccl::EventV6> six(library_);
      const Nccl<nccl::EventV4> four(library_);
      for (int round = 0; round < 200; ++round) {
        int& mask = masks[static_cast<std::size_t>(i)];
        const auto hash = static_cast<std::uint64_t>(i);
        void* context = six.init(hash, 1 + round % 2, &mask);
        void* other = four.init(hash + 100, 2, &mask);
        EXPECT_NE(context, nullptr);
        run_ops(six, context, 520);
        run_ops(four, other, 520);
        six.finalize(context);
        four.finalize(other);
      }
    });
  }
  std::thread flips([&] {
    while (!must_stop) {
      library_.find<void()>("smon_pause")();
      library_.find<void()>("smon_resume")();
    }
  });
  for (std::thread& thread : threads) thread.join();
  must_stop = true;
  flips.join();
  EXPECT_EQ(grown(&smon_status::nccl_communicators), std::uint64_t{kThreads} * 200 * 2);
  EXPECT_EQ(grown(&smon_status::nccl_foreign_handles), 0u);
}

TEST_F(NcclThreads, StoppingAndStartingWhileProxyThreadsRunHurtsNobody) {
  std::atomic<bool> must_stop{false};
  std::array<int, 2> masks{};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const Nccl<nccl::EventV6> nccl(library_);
      void* context = nccl.init(static_cast<std::uint64_t>(i), 2, &masks[static_cast<std::size_t>(i)]);
      while (!must_stop) run_ops(nccl, context, 520);
      nccl.finalize(context);
    });
  }
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(library_.stop(), SMON_OK);
    EXPECT_EQ(library_.start(run_id_), SMON_OK);
  }
  must_stop = true;
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace smon_rt::testing
