#include "record/comm_collector.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>

#include "format/trace_reader.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::CountingClock;
using testing::every_step_sampled;
using testing::make_recorder;
using testing::no_step_sampled;

const CommTracker* g_tracker = nullptr;

struct Collected final : TraceVisitor {
  std::vector<TraceCommOp> ops;
  std::vector<TraceCommCounts> counts;
  std::vector<TraceCommChannel> channels;
  void on_comm_ops(std::span<const TraceCommOp> all) override { ops.insert(ops.end(), all.begin(), all.end()); }
  void on_comm_counts(const TraceCommCounts& all) override { counts.push_back(all); }
  void on_comm_channels(std::span<const TraceCommChannel> all) override {
    channels.insert(channels.end(), all.begin(), all.end());
  }
};

class CommCollectorTest : public ::testing::Test {
 protected:
  static constexpr std::int64_t kSecond = 1'000'000'000;

  void SetUp() override { set_up(every_step_sampled()); }
  void set_up(RecorderOptions options) {
    collector_.reset();
    recorder_.reset();  // there may be one in a process
    options.clock = &clock_.clock();
    recorder_ = make_recorder(options);
    ASSERT_NE(recorder_, nullptr);
    recorder_->step_begin(7);
    converter_.add(clock_.clock().read());  // ticks are nanoseconds
    g_tracker = &tracker_;
    collector_ = std::make_unique<CommCollector>(+[]() noexcept { return g_tracker; }, recorder_->arena(), converter_);
    communicator_ = tracker_.open_communicator(0xabc, true);
  }

  CommHandle begin(const CommOpFacts& facts = {}) { return tracker_.begin_op(*recorder_, communicator_, 0, facts); }
  void end(CommHandle handle) { tracker_.end(*recorder_, handle); }
  void run_ops(int count) {
    for (int i = 0; i < count; ++i) end(begin());
  }
  CommHandle transfer(CommHandle op) { return tracker_.begin_transfer(*recorder_, communicator_, op, 3, true, 1); }

  Collected look(bool everything = false) {
    std::string out;
    collector_->append_ops(out, clock_.now(), everything);
    collector_->append_state(out, clock_.now(), everything);
    Collected collected;
    EXPECT_EQ(read_trace(std::as_bytes(std::span(out)), {}, collected).damage_count, 0u);
    return collected;
  }
  std::size_t op_count(bool everything = false) { return look(everything).ops.size(); }

  CountingClock clock_;
  std::unique_ptr<Recorder> recorder_;
  ClockConverter converter_;
  CommTracker tracker_;
  std::unique_ptr<CommCollector> collector_;
  CommHandle communicator_ = 0;
};

TEST_F(CommCollectorTest, AnOpIsTakenOnceASecondAfterItIsOver) {
  clock_.advance(kSecond);
  const std::int64_t began = clock_.now() + 1;
  const CommHandle op = begin();
  clock_.advance(kSecond / 2);
  EXPECT_EQ(op_count(), 0u) << "not enqueued";
  end(op);
  const std::int64_t enqueued = clock_.now();
  clock_.advance(kSecond / 2);
  EXPECT_EQ(op_count(), 0u) << "a transfer may begin yet";
  clock_.advance(kSecond);
  const auto taken = look().ops;
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].number, 0u);
  EXPECT_EQ(taken[0].step, 7u);
  EXPECT_EQ(taken[0].communicator, 1u);
  EXPECT_EQ(taken[0].start_ns, began);
  EXPECT_EQ(taken[0].enqueue_ns, static_cast<std::uint64_t>(enqueued - began));
  EXPECT_EQ(taken[0].flags, comm_op_flag::kEnqueued);
  clock_.advance(10 * kSecond);
  EXPECT_EQ(op_count(true), 0u);
}

TEST_F(CommCollectorTest, AnOpWithTransfersIsOverWithTheLastOfThem) {
  const CommHandle op = begin();
  end(op);
  const CommHandle first = transfer(op);
  const std::int64_t first_ns = clock_.now();
  clock_.advance(2 * kSecond);
  EXPECT_EQ(op_count(), 0u);
  end(first);
  const std::int64_t last_ns = clock_.now();
  clock_.advance(2 * kSecond);
  const auto taken = look().ops;
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].transfer_count, 1u);
  EXPECT_EQ(taken[0].open_transfer_count, 0u);
  EXPECT_LE(taken[0].first_transfer_ns, first_ns);
  EXPECT_EQ(taken[0].first_transfer_ns + static_cast<std::int64_t>(taken[0].transfer_ns), last_ns);
}

TEST_F(CommCollectorTest, TimesOfKernelsAreTakenWhereAllOfThemCanBeTrue) {
  CommOpFacts facts;
  facts.asks_kernels = true;
  for (const std::uint64_t second_stop : {2500u, 5u}) {
    const CommHandle op = begin(facts);
    end(op);
    for (const std::uint32_t channel : {0u, 1u}) {
      const CommHandle kernel = tracker_.begin_kernel(*recorder_, communicator_, op, channel, 1000 + channel);
      tracker_.kernel_stopped(*recorder_, kernel, channel == 0 ? 2000 : second_stop);
      end(kernel);
    }
    communicator_ = tracker_.open_communicator(0xdef, true);  // whose channels begin anew
  }
  const auto taken = look(true).ops;
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].kernel_count, 2u);
  EXPECT_EQ(taken[0].kernel_start_device_ns, 1000u);
  EXPECT_EQ(taken[0].kernel_duration_device_ns, 1500u);
  EXPECT_EQ(taken[0].slowest_channel, 1);
  EXPECT_EQ(taken[1].kernel_count, 0u);
  EXPECT_EQ(taken[1].kernel_duration_device_ns, 0u);
}

TEST_F(CommCollectorTest, AnOpThatHangsHoldsOthersUpForTenSecondsAndIsTakenAsItIs) {
  const CommHandle hung = begin();
  end(hung);
  transfer(hung);
  end(begin());
  clock_.advance(9 * kSecond);
  EXPECT_EQ(op_count(), 0u);
  clock_.advance(2 * kSecond);
  const auto taken = look().ops;
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].open_transfer_count, 1u);
  EXPECT_EQ(taken[0].transfer_ns, 0u);
}

TEST_F(CommCollectorTest, TheEndTakesAllThatIsThere) {
  begin();
  end(begin());
  const auto taken = look(true).ops;
  ASSERT_EQ(taken.size(), 2u);
  EXPECT_EQ(taken[0].flags, 0) << "it was not enqueued yet";
}

TEST_F(CommCollectorTest, OpsOfStepsThatAreNotSampledArePassedOverAndHoldNobodyUp) {
  set_up(no_step_sampled());
  begin();
  clock_.advance(2 * kSecond);
  EXPECT_EQ(op_count(), 0u);
  EXPECT_EQ(op_count(true), 0u);
  EXPECT_EQ(collector_->overwritten_ops(), 0u);
}

TEST_F(CommCollectorTest, WhatIsOverwrittenBeforeItIsTakenIsCounted) {
  run_ops(3 * CommTracker::kOps / 2);
  clock_.advance(2 * kSecond);
  const std::size_t taken = op_count();
  EXPECT_EQ(taken, CommTracker::kOps);
  EXPECT_EQ(collector_->overwritten_ops(), CommTracker::kOps / 2);
  EXPECT_GT(collector_->filled_ratio(), 1.0) << "the drain thread must come sooner";
}

TEST_F(CommCollectorTest, ManyOpsAreTakenBeforeTheirSlotsAreNeeded) {
  begin();  // never ends
  run_ops(2 * CommTracker::kOps / 3);
  EXPECT_EQ(op_count(), 1 + 2 * CommTracker::kOps / 3 - CommTracker::kOps / 2)
      << "those more than half the room behind, whatever they lack";
}

TEST_F(CommCollectorTest, ANumberThatNoOpHasGotIsNoLoss) {
  const CommHandle stuck = begin();
  run_ops(CommTracker::kOps - 1);
  clock_.advance(2 * kSecond);
  EXPECT_EQ(op_count(true), CommTracker::kOps);
  run_ops(10);  // passes over the slot that is in use
  clock_.advance(2 * kSecond);
  const auto taken = look().ops;
  ASSERT_EQ(taken.size(), 0u) << "it may be an op that is just being written";
  clock_.advance(2 * kSecond);
  EXPECT_EQ(op_count(), 10u);
  EXPECT_EQ(collector_->overwritten_ops(), 0u);
  end(stuck);
}

TEST_F(CommCollectorTest, OpsOfAnEarlierRecordingAreNotTakenAgain) {
  run_ops(3);
  collector_ = std::make_unique<CommCollector>(+[]() noexcept { return g_tracker; }, recorder_->arena(), converter_);
  run_ops(2);
  EXPECT_EQ(op_count(true), 2u);
}

TEST_F(CommCollectorTest, WithoutATrackerThereIsNothing) {
  g_tracker = nullptr;
  run_ops(2);
  const Collected nothing = look(true);
  EXPECT_TRUE(nothing.ops.empty() && nothing.counts.empty() && nothing.channels.empty());
  g_tracker = &tracker_;
  EXPECT_EQ(op_count(true), 2u) << "NCCL may be loaded later";
}

TEST_F(CommCollectorTest, CountsAreWrittenWhenTheyChange) {
  run_ops(1);
  tracker_.end(*recorder_, 12345);
  const auto counts = look().counts;
  ASSERT_EQ(counts.size(), 1u);
  EXPECT_EQ(counts[0].communicators, 1u);
  EXPECT_EQ(counts[0].ops, 1u);
  EXPECT_EQ(counts[0].foreign_handles, 1u);
  EXPECT_TRUE(look(true).counts.empty());
}

TEST_F(CommCollectorTest, ChannelsAreWrittenAtOnceThenOnceAMinuteAndAtTheEnd) {
  const CommHandle op = begin();
  const CommHandle sub = transfer(op);
  const CommHandle step = tracker_.begin_step(sub, 0);
  tracker_.enter(*recorder_, step, ChannelState::kSendWait, 1000);
  const std::int64_t entered = clock_.now();
  const auto first = look().channels;
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0], (TraceCommChannel{1, 0xabc, kNoId, 3, true, 1, 1, 1, 0, 1000, 3, entered}));
  end(step);
  clock_.advance(30 * kSecond);
  EXPECT_TRUE(look().channels.empty());
  clock_.advance(31 * kSecond);
  const auto next = look().channels;
  ASSERT_EQ(next.size(), 1u);
  EXPECT_EQ(next[0].done, 1u);
  EXPECT_TRUE(look(true).channels.empty()) << "nothing has changed";
  end(tracker_.begin_step(sub, 1));
  EXPECT_EQ(look(true).channels.size(), 1u);
}

TEST_F(CommCollectorTest, EachOpOfBusyThreadsIsTakenInOrderOrCounted) {
  constexpr int kOpsOfAThread = 150'000;
  constexpr int kOpsOfALook = 3'000;  // of both threads more than there is room for
  std::atomic<int> running{2};
  std::atomic<int> looks{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      for (int op = 0; op < kOpsOfAThread; ++op) {
        while (looks < op / kOpsOfALook) std::this_thread::yield();
        end(begin());
      }
      --running;
    });
  }
  std::vector<TraceCommOp> taken;
  for (bool is_last = false; !is_last;) {
    while (running != 0 && tracker_.op_end() < std::uint64_t{kOpsOfALook} * (static_cast<unsigned>(looks) + 1)) {
      std::this_thread::yield();
    }
    is_last = running == 0;
    clock_.advance(kSecond);
    const auto more = look(is_last).ops;
    ++looks;
    taken.insert(taken.end(), more.begin(), more.end());
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 1; i < taken.size(); ++i) ASSERT_GT(taken[i].number, taken[i - 1].number);
  // Where a thread is stopped inside an op, others pass over the number that its slot would have next; an op that is
  // not written yet when its thread is stopped seems to be such a number.
  EXPECT_LE(taken.size() + collector_->overwritten_ops(), tracker_.op_end());
  EXPECT_GE(taken.size() + collector_->overwritten_ops(), 2u * kOpsOfAThread - 10);
  EXPECT_GT(taken.size(), CommTracker::kOps);
}

}  // namespace
}  // namespace smon_rt
