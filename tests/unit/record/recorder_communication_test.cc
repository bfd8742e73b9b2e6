#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "record/recorder.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::every_step_sampled;
using testing::make_recorder;
using testing::no_step_sampled;
using testing::RingReader;

const std::vector<std::int32_t> kMembers = {0, 4, 8};

TEST(RecorderCommunication, OpsOfACommunicatorAreNumberedByKind) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint16_t dp = recorder->register_communicator("dp group", "dp", kMembers);
  const std::uint16_t tp = recorder->register_communicator("tp group", "tp", kMembers);
  for (int i = 0; i < 3; ++i) {
    recorder->end(recorder->begin(Kind::kGradsReduceScatter, {.comm_id = dp}));
    recorder->end(recorder->begin(Kind::kParamsAllGather, {.comm_id = dp}));
    recorder->end(recorder->begin(Kind::kCollective, {.comm_id = tp, .peer = i}));
  }
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 9u);
  for (std::uint32_t i = 0; i < 9; ++i) {
    EXPECT_EQ(spans[i].comm_seq, i / 3 + 1);
    EXPECT_EQ(spans[i].name_or_comm_id, i % 3 == 2 ? tp : dp);
  }
}

TEST(RecorderCommunication, OpsBeyondWhatCanBeCountedAreCountedAsThat) {
  const auto recorder = make_recorder(no_step_sampled());
  const std::uint16_t pp = recorder->register_communicator("pp group", "pp", kMembers);
  for (std::int32_t peer = 0; peer < 1000; ++peer) {
    recorder->end(recorder->begin(Kind::kForwardSend, {.comm_id = pp, .peer = peer}));
  }
  const auto& uncounted = recorder->header().losses.uncounted_sequences;
  EXPECT_EQ(uncounted.load(), 0u);
  for (std::int32_t peer = 0; peer < 20'000; ++peer) {
    recorder->end(recorder->begin(Kind::kForwardSend, {.comm_id = pp, .peer = peer}));
  }
  EXPECT_GT(uncounted.load(), 20'000u - Sequences::kCapacity - 1);
  const std::uint64_t before = uncounted.load();
  recorder->end(recorder->begin(Kind::kForwardSend, {.comm_id = pp, .peer = 30'000, .comm_seq = 7}));
  EXPECT_EQ(uncounted.load(), before) << "whoever brings a number needs no count";
}

TEST(RecorderCommunication, SendsAndReceivesAreNumberedByPeerAndDirection) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint16_t pp = recorder->register_communicator("pp", "pp", kMembers);
  for (int i = 0; i < 2; ++i) {
    for (const std::int32_t peer : {4, 8}) {
      recorder->end(recorder->begin(Kind::kForwardSend, {.comm_id = pp, .peer = peer}));
      recorder->end(recorder->begin(Kind::kForwardRecv, {.comm_id = pp, .peer = peer}));
    }
  }
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 8u);
  for (std::uint32_t i = 0; i < 8; ++i) EXPECT_EQ(spans[i].comm_seq, i / 4 + 1);
}

TEST(RecorderCommunication, ADropOrAnUnsampledStepShiftsNoNumber) {
  RecorderOptions options = every_step_sampled();
  options.sampling = {.sample_ratio = 0, .warmup_steps = 0, .always_steps = 1};
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  const std::uint16_t dp = recorder->register_communicator("dp", "dp", kMembers);
  recorder->step_begin(0);
  // Slots run out: the ops beyond are dropped, yet counted.
  std::vector<Token> open;
  const std::uint32_t slots = recorder->arena().sizes().large_slots;
  for (std::uint32_t i = 0; i < slots; ++i) open.push_back(recorder->begin(Kind::kUser));
  for (int i = 0; i < 10; ++i) EXPECT_EQ(recorder->begin(Kind::kGradsAllReduce, {.comm_id = dp}), 0u);
  for (const Token token : open) recorder->end(token);
  // Steps that are not sampled, too.
  recorder->step_begin(1);
  EXPECT_FALSE(recorder->is_sampled());
  for (int i = 0; i < 5; ++i) recorder->end(recorder->begin(Kind::kGradsAllReduce, {.comm_id = dp}));
  recorder->sampling().request(2, 1);
  recorder->step_begin(2);
  reader.take();
  recorder->end(recorder->begin(Kind::kGradsAllReduce, {.comm_id = dp}));
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].comm_seq, 16u);
  EXPECT_EQ(recorder->arena().communicators()[0].enqueued.load(), 16u);
}

TEST(RecorderCommunication, ANumberThatTheCallerKnowsIsTaken) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint16_t dp = recorder->register_communicator("dp", "dp", kMembers);
  recorder->end(recorder->begin(Kind::kCollective, {.comm_id = dp, .comm_seq = 77}));
  recorder->end(recorder->begin(Kind::kCollective, {.comm_id = dp}));
  const auto spans = reader.take();
  EXPECT_EQ(spans.at(0).comm_seq, 77u);
  EXPECT_EQ(spans.at(1).comm_seq, 1u);
}

TEST(RecorderCommunication, ACommunicatorThatBecomesKnownLaterIsCountedThen) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint16_t pp = recorder->register_communicator("pp", "pp", kMembers);
  const Token outer = recorder->begin(Kind::kForwardSend, {.microbatch = 1});
  recorder->annotate(recorder->current(), {.comm_id = pp, .peer = 4, .payload_bytes = 100});
  recorder->annotate(outer, {.comm_id = pp, .peer = 4});
  recorder->end(outer);
  recorder->end(recorder->begin(Kind::kForwardSend, {.comm_id = pp, .peer = 4}));
  const auto spans = reader.take();
  EXPECT_EQ(spans.at(0).comm_seq, 1u);
  EXPECT_EQ(spans.at(0).name_or_comm_id, pp);
  EXPECT_EQ(spans.at(0).peer, 4);
  EXPECT_EQ(spans.at(1).comm_seq, 2u) << "counted once, however often it is said";
}

TEST(RecorderCommunication, TheTableShowsWhatWasEnqueuedAndWhatIsDone) {
  const auto recorder = make_recorder(no_step_sampled());
  const std::uint16_t dp = recorder->register_communicator("data parallel", "dp", kMembers);
  const CommRecord& record = recorder->arena().communicators()[dp - 1];
  EXPECT_EQ(record.comm_id.load(), dp);
  EXPECT_STREQ(record.name, "data parallel");
  EXPECT_STREQ(record.dimension, "dp");
  EXPECT_EQ(record.member_count, 3);
  const Token token = recorder->begin(Kind::kParamsAllGather, {.comm_id = dp});
  EXPECT_EQ(record.enqueued.load(), 1u);
  EXPECT_EQ(record.started.load(), 0u);
  EXPECT_EQ(record.completed.load(), 0u);
  EXPECT_EQ(record.last_kind.load(), static_cast<std::uint32_t>(Kind::kParamsAllGather));
  EXPECT_GT(record.last_enqueued_ticks.load(), 0);
  recorder->communication_started(dp);
  recorder->communication_completed(dp);
  EXPECT_EQ(record.started.load(), 1u);
  EXPECT_EQ(record.completed.load(), 1u);
  EXPECT_GE(record.last_completed_ticks.load(), record.last_enqueued_ticks.load());
  recorder->end(token);
}

TEST(RecorderCommunication, AnOpThatHangsShowsSinceWhenInEveryStep) {
  const auto recorder = make_recorder(no_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint16_t dp = recorder->register_communicator("dp", "dp", kMembers);
  recorder->begin(Kind::kGradsAllReduce, {.comm_id = dp});
  EXPECT_GT(reader.open_spans().at(0).start, 0);
  EXPECT_EQ(reader.open_spans().at(0).comm_seq, 1u);
}

TEST(RecorderCommunication, MoreCommunicatorsThanTheTableHoldsAreNamedAndCountedAllTheSame) {
  RecorderOptions options = every_step_sampled();
  options.arena.sizes.communicators = 2;
  const auto recorder = make_recorder(options);
  RingReader reader(recorder->arena());
  for (int i = 0; i < 5; ++i) {
    const std::uint16_t id = recorder->register_communicator("group " + std::to_string(i), "", kMembers);
    EXPECT_EQ(id, i + 1);
    recorder->end(recorder->begin(Kind::kCollective, {.comm_id = id}));
    recorder->communication_completed(id);
    EXPECT_EQ(reader.take().at(0).comm_seq, 1u);
  }
  recorder->end(recorder->begin(Kind::kCollective, {.comm_id = 0xffff}));
  EXPECT_EQ(reader.take().size(), 1u) << "an id that nobody gave is only a number";
}

TEST(RecorderCommunication, ThreadsThatIssueOpsAtOnceNeverGetOneNumberTwice) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const std::uint16_t dp = recorder->register_communicator("dp", "dp", kMembers);
  constexpr int kOps = 400;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int k = 0; k < kOps; ++k) recorder->end(recorder->begin(Kind::kCollective, {.comm_id = dp}));
    });
  }
  for (auto& thread : threads) thread.join();
  std::vector<int> seen(4 * kOps + 1, 0);
  for (const Span& span : reader.take()) ++seen.at(span.comm_seq);
  EXPECT_EQ(seen[0], 0);
  for (std::size_t i = 1; i < seen.size(); ++i) ASSERT_EQ(seen[i], 1) << i;
}

TEST(RecorderCommunication, MisuseIsCountedAndTheRestOfTheCallDone) {
  const auto recorder = make_recorder(every_step_sampled());
  RingReader reader(recorder->arena());
  const auto& misused = recorder->header().more_losses.misused_calls;
  const std::uint16_t dp = recorder->register_communicator("dp", "dp", kMembers);
  recorder->end(recorder->begin(Kind::kCollective, {.comm_id = dp}));
  recorder->end(recorder->begin(Kind::kUser, {.name_id = 3}));
  Token token = recorder->begin(Kind::kCollective);
  recorder->annotate(token, {.comm_id = dp, .peer = 2});
  recorder->end(token);
  EXPECT_EQ(misused.load(), 0u);

  EXPECT_EQ(recorder->begin(static_cast<Kind>(200)), 0u);
  EXPECT_EQ(misused.load(), 1u) << "no such kind";
  recorder->end(recorder->begin(Kind::kCollective, {.comm_id = 77}));
  EXPECT_EQ(misused.load(), 2u) << "a communicator that nobody registered";
  recorder->end(recorder->begin(Kind::kCollective, {.name_id = 3, .comm_id = dp}));
  EXPECT_EQ(misused.load(), 3u) << "a communicator's span has no name";
  token = recorder->begin(Kind::kCollective, {.comm_id = dp});
  recorder->annotate(token, {.name_id = 3});
  recorder->end(token);
  EXPECT_EQ(misused.load(), 4u);
  token = recorder->begin(Kind::kUser);
  recorder->annotate(token, {.microbatch = 5, .comm_id = dp});
  recorder->end(token);
  EXPECT_EQ(misused.load(), 5u) << "no other span has a communicator";
  const auto spans = reader.take();
  ASSERT_EQ(spans.size(), 7u);
  EXPECT_EQ(spans.back().microbatch, 5);
}

}  // namespace
}  // namespace smon_rt
