#include "record/comm_tracker.h"

#include <gtest/gtest.h>

#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::CountingClock;
using testing::every_step_sampled;
using testing::make_recorder;

class CommTrackerTest : public ::testing::Test {
 protected:
  CommTrackerTest() {
    RecorderOptions options = every_step_sampled();
    options.clock = &clock_.clock();
    recorder_ = make_recorder(options);
    communicator_ = tracker_.open_communicator(0xabc, true);
  }
  CommHandle op(CommHandle call = 0, CommOpFacts facts = {}) {
    facts.asks_kernels = true;
    return tracker_.begin_op(*recorder_, communicator_, call, facts);
  }
  CommOp read(std::uint64_t number) {
    CommOp read;
    EXPECT_TRUE(tracker_.read_op(number, &read));
    return read;
  }
  CommHandle kernel(CommHandle op, std::uint32_t channel, std::uint64_t start) {
    return tracker_.begin_kernel(*recorder_, communicator_, op, channel, start);
  }
  void run_kernel(CommHandle op, std::uint32_t channel, std::uint64_t start, std::uint64_t stop) {
    const CommHandle handle = kernel(op, channel, start);
    EXPECT_NE(handle, 0u);
    tracker_.kernel_stopped(*recorder_, handle, stop);
    tracker_.end(*recorder_, handle);
  }

  CountingClock clock_;
  std::unique_ptr<Recorder> recorder_;
  CommTracker tracker_;
  CommHandle communicator_ = 0;
};

TEST_F(CommTrackerTest, AnOpHasWhatTheLibrarySaysOfIt) {
  recorder_->step_begin(17);
  CommOpFacts facts;
  facts.function = CommFunction::kReduceScatter;
  facts.datatype = CommDatatype::kBfloat16;
  facts.algorithm = CommAlgorithm::kNvlsTree;
  facts.protocol = CommProtocol::kLl128;
  facts.channel_count = 24;
  facts.peer = 3;
  facts.payload_bytes = std::uint64_t{1} << 33;
  facts.library_seq = 41;
  tracker_.end(*recorder_, op(0, facts));
  const CommOp read = this->read(0);
  EXPECT_EQ(read.facts.function, CommFunction::kReduceScatter);
  EXPECT_EQ(read.facts.datatype, CommDatatype::kBfloat16);
  EXPECT_EQ(read.facts.algorithm, CommAlgorithm::kNvlsTree);
  EXPECT_EQ(read.facts.protocol, CommProtocol::kLl128);
  EXPECT_EQ(read.facts.channel_count, 24);
  EXPECT_EQ(read.facts.peer, 3);
  EXPECT_EQ(read.facts.payload_bytes, std::uint64_t{1} << 33);
  EXPECT_EQ(read.facts.library_seq, 41u);
  EXPECT_EQ(read.step, 17u);
  EXPECT_TRUE(read.is_sampled);
  EXPECT_TRUE(read.is_enqueued);
  EXPECT_GT(read.enqueued_ticks, read.start_ticks);
  EXPECT_EQ(read.transfers, 0u) << "no evidence about channels";
}

TEST_F(CommTrackerTest, AnOpOfAnOpenSpanHasItsCommunicatorAndNumber) {
  const std::uint16_t comm_id = recorder_->register_communicator("dp", "dp", {});
  for (std::uint32_t i = 1; i <= 2; ++i) {
    const Token span = recorder_->begin(Kind::kGradsAllReduce, {.comm_id = comm_id});
    const CommHandle call = tracker_.begin_call(*recorder_, communicator_, 0, false);
    recorder_->end(span);
    op(call);  // after the span, as at the end of a group
    EXPECT_EQ(read(i - 1).comm_id, comm_id);
    EXPECT_EQ(read(i - 1).comm_seq, i);
  }
  EXPECT_EQ(tracker_.comm_id_of(communicator_), comm_id);
  EXPECT_EQ(tracker_.counts().joined_ops, 2u);
}

TEST_F(CommTrackerTest, SpansOfComputeAreNoCommunication) {
  const Token span = recorder_->begin(Kind::kForwardCompute);
  op();
  EXPECT_EQ(read(0).comm_id, kNoId);
  recorder_->end(span);
}

TEST_F(CommTrackerTest, OpsOfACallThatIsCapturedAreMarked) {
  op(tracker_.begin_call(*recorder_, communicator_, 0, true));
  op(tracker_.begin_call(*recorder_, communicator_, 0, false));
  EXPECT_TRUE(read(0).is_captured);
  EXPECT_FALSE(read(1).is_captured);
}

TEST_F(CommTrackerTest, TransfersOfAnOpFoldIntoFirstStartAndLastEnd) {
  const CommHandle made = op();
  const CommHandle first = tracker_.begin_transfer(*recorder_, communicator_, made, 0, true, 1);
  const std::int64_t after_first = clock_.now();
  clock_.advance(100);
  const CommHandle second = tracker_.begin_transfer(*recorder_, communicator_, made, 1, true, 1);
  EXPECT_EQ(read(0).transfers, 2u);
  EXPECT_EQ(read(0).open_transfers, 2u);
  tracker_.end(*recorder_, second);
  clock_.advance(100);
  tracker_.end(*recorder_, first);
  const CommOp read = this->read(0);
  EXPECT_EQ(read.open_transfers, 0u);
  EXPECT_LE(read.first_transfer_ticks, after_first);
  EXPECT_EQ(read.last_transfer_ticks, clock_.now());
}

TEST_F(CommTrackerTest, KernelsOfAnOpFoldIntoLeastStartGreatestStopAndSlowestChannel) {
  const CommHandle made = op();
  run_kernel(made, 4, 1010, 2000);
  run_kernel(made, 5, 1000, 2500);
  run_kernel(made, 6, 1020, 1900);
  const CommOp read = this->read(0);
  EXPECT_EQ(read.kernel_start_device_ns, 1000u);
  EXPECT_EQ(read.kernel_stop_device_ns, 2500u);
  EXPECT_EQ(read.slowest_channel, 5);
  EXPECT_EQ(read.kernels, 3u);
  EXPECT_EQ(read.open_kernels, 0u);
  EXPECT_EQ(read.kernel_seen_ticks, clock_.now());
  EXPECT_GT(read.kernel_begun_ticks, read.start_ticks);
  EXPECT_LT(read.kernel_begun_ticks, read.kernel_seen_ticks);
  EXPECT_FALSE(read.has_rejected_times);
}

TEST_F(CommTrackerTest, KernelTimesThatCannotBeTrueAreRejectedAndCounted) {
  const CommHandle first = op();
  EXPECT_EQ(kernel(first, 0, 0), 0u) << "none";
  run_kernel(first, 0, 1000, 900);
  EXPECT_EQ(read(0).kernel_stop_device_ns, 0u) << "stop before start";
  EXPECT_TRUE(read(0).has_rejected_times);
  run_kernel(first, 0, 1000, 0);
  EXPECT_EQ(read(0).kernel_stop_device_ns, 0u) << "no stop";
  run_kernel(first, 0, 1000, 2000);
  const CommHandle second = op();
  EXPECT_EQ(kernel(second, 0, 1500), 0u)
      << "NCCL's ring of 64 has run over: an earlier op was given a later one's time";
  EXPECT_NE(kernel(second, 1, 1500), 0u) << "each channel has its own";
  EXPECT_EQ(tracker_.counts().rejected_times, 4u);
  EXPECT_EQ(read(0).kernel_stop_device_ns, 2000u);
}

TEST_F(CommTrackerTest, AKernelsSecondStopIsStale) {
  const CommHandle made = op();
  const CommHandle handle = kernel(made, 0, 1000);
  tracker_.kernel_stopped(*recorder_, handle, 2000);
  tracker_.kernel_stopped(*recorder_, handle, 9000);
  tracker_.end(*recorder_, handle);
  tracker_.kernel_stopped(*recorder_, handle, 9000);
  tracker_.end(*recorder_, handle);
  EXPECT_EQ(read(0).kernel_stop_device_ns, 2000u);
  EXPECT_EQ(tracker_.counts().stale_handles, 3u);
}

TEST_F(CommTrackerTest, AnOpThatHangsKeepsItsSlotWhileThousandsOfOthersRun) {
  const CommHandle hung = op();
  tracker_.end(*recorder_, hung);
  const CommHandle transfer = tracker_.begin_transfer(*recorder_, communicator_, hung, 0, false, 1);
  const CommHandle step = tracker_.begin_step(transfer, 0);
  for (std::size_t i = 0; i < 3 * CommTracker::kTransfers; ++i) {
    const CommHandle other = op();
    tracker_.end(*recorder_, other);
    tracker_.end(*recorder_, tracker_.begin_transfer(*recorder_, communicator_, other, 1, true, 1));
  }
  EXPECT_EQ(read(0).open_transfers, 1u);
  tracker_.enter(*recorder_, step, ChannelState::kRecvFlushWait, 10);
  tracker_.end(*recorder_, step);
  tracker_.end(*recorder_, transfer);
  EXPECT_EQ(read(0).open_transfers, 0u);
  EXPECT_EQ(tracker_.counts().lost_ends, 0u);
  EXPECT_EQ(tracker_.counts().stale_handles, 0u);
}

TEST_F(CommTrackerTest, TablesThatAreFullAreSaid) {
  for (std::uint32_t i = 0; i < 40; ++i) {
    const CommHandle other = tracker_.open_communicator(i, true);
    for (std::uint32_t channel = 0; channel < CommTracker::kChannels; ++channel) {
      tracker_.end(*recorder_, tracker_.begin_transfer(*recorder_, other, 0, channel, true, 1));
    }
  }
  EXPECT_GT(tracker_.counts().untracked, 0u) << "2,560 channels are more than the arena has";
}

TEST_F(CommTrackerTest, AClosedCommunicatorGivesItsChannelsBack) {
  for (std::uint32_t i = 0; i < 100; ++i) {
    const CommHandle other = tracker_.open_communicator(i, true);
    for (std::uint32_t channel = 0; channel < CommTracker::kChannels; ++channel) {
      tracker_.end(*recorder_, tracker_.begin_transfer(*recorder_, other, 0, channel, true, 1));
    }
    bool had_network = false;
    EXPECT_TRUE(tracker_.close_communicator(recorder_.get(), other, &had_network));
    EXPECT_TRUE(had_network);
    EXPECT_FALSE(tracker_.close_communicator(recorder_.get(), other, &had_network)) << "once";
  }
  EXPECT_EQ(tracker_.counts().untracked, 0u);
}

}  // namespace
}  // namespace smon_rt
