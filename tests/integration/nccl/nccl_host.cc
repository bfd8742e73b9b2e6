// Loads libsmon_rt.so as NCCL loads a profiler plug-in, and does to each version of it what NCCL does, and what NCCL
// has been seen doing when it should not.

#include <array>
#include <cstdint>
#include <vector>

#include "nccl_library.h"

namespace smon_rt::testing {
namespace {

using nccl::EventState;

template <typename Event>
class NcclHost : public NcclTest {
 protected:
  Nccl<Event> nccl_{library_};
  int mask_ = -1;
};

using Versions = ::testing::Types<nccl::EventV4, nccl::EventV5, nccl::EventV6>;
TYPED_TEST_SUITE(NcclHost, Versions);

constexpr std::uint32_t kAlwaysOn = nccl::kCollApiEvent | nccl::kP2pApiEvent | nccl::kCollEvent | nccl::kP2pEvent;
constexpr std::uint32_t kNetwork = nccl::kProxyOpEvent | nccl::kProxyStepEvent;

/// Of the bits, those that a version knows.
template <typename Event>
int known(std::uint32_t bits) {
  return static_cast<int>(Event::kVersion == 4 ? bits & 0xff : bits);
}

TYPED_TEST(NcclHost, InitGivesAContextAndAsksForCallsAndOps) {
  void* context = this->nccl_.init(7, 1, &this->mask_);
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(this->mask_, known<TypeParam>(kAlwaysOn));
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, OnlyCommunicatorsOfSeveralNodesHaveTheirTransfersFolded) {
  void* near = this->nccl_.init(1, 1, &this->mask_);
  EXPECT_EQ(this->mask_, known<TypeParam>(kAlwaysOn));
  void* far = this->nccl_.init(2, 2, &this->mask_);
  EXPECT_EQ(this->mask_, known<TypeParam>(kAlwaysOn | kNetwork)) << "one mask for all communicators of a libnccl";
  this->nccl_.finalize(far);
  void* next = this->nccl_.init(3, 1, &this->mask_);
  EXPECT_EQ(this->mask_, known<TypeParam>(kAlwaysOn));
  this->nccl_.finalize(next);
  this->nccl_.finalize(near);
}

TYPED_TEST(NcclHost, NothingIsAskedForBeforeRecordingStartsAndAfterItStops) {
  this->library_.stop();
  void* context = this->nccl_.init(7, 2, &this->mask_);
  EXPECT_NE(context, nullptr);
  EXPECT_EQ(this->mask_, 0);
  EXPECT_EQ(this->nccl_.coll(context, nullptr), nullptr);
  ASSERT_EQ(this->library_.start(this->run_id_), SMON_OK);
  EXPECT_EQ(this->mask_, known<TypeParam>(kAlwaysOn | kNetwork)) << "NCCL may be there first";
  EXPECT_NE(this->nccl_.coll(context, nullptr), nullptr);
  this->library_.template find<void()>("smon_pause")();
  EXPECT_EQ(this->mask_, 0);
  this->library_.template find<void()>("smon_resume")();
  EXPECT_EQ(this->mask_, known<TypeParam>(kAlwaysOn | kNetwork));
  this->library_.stop();
  EXPECT_EQ(this->mask_, 0);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, EachLibncclHasItsOwnMaskWhichIsLeftAloneOnceItHasNoCommunicators) {
  int other_mask = -1;
  void* first = this->nccl_.init(1, 2, &this->mask_);
  void* second = this->nccl_.init(1, 2, &other_mask);
  EXPECT_EQ(this->mask_, other_mask);
  this->nccl_.finalize(second);
  other_mask = 12345;
  this->library_.template find<void()>("smon_pause")();
  EXPECT_EQ(this->mask_, 0);
  EXPECT_EQ(other_mask, 12345) << "that library may have been unloaded";
  this->library_.template find<void()>("smon_resume")();
  this->nccl_.finalize(first);
}

TYPED_TEST(NcclHost, ChannelsCountWhatTheProxyThreadTells) {
  void* context = this->nccl_.init(11, 2, &this->mask_);
  void* call = this->nccl_.call(context, nullptr);
  void* op = this->nccl_.coll(context, call, 5);
  this->nccl_.stop(op);
  this->nccl_.stop(call);
  this->nccl_.transfer(context, op, 3, true, 4, 1000);
  this->nccl_.transfer(context, op, 3, false, 2, 500);
  const auto sends = this->channel(11, 3, true);
  const auto receives = this->channel(11, 3, false);
  ASSERT_TRUE(sends && receives);
  EXPECT_EQ(sends->begun, 4u);
  EXPECT_EQ(sends->moved, 4u);
  EXPECT_EQ(sends->done, 4u);
  EXPECT_EQ(sends->moved_bytes, 4000u);
  EXPECT_EQ(sends->peer, 1);
  EXPECT_EQ(receives->moved, 2u) << "a receive that is flushed was received once";
  EXPECT_EQ(receives->moved_bytes, 1000u);
  EXPECT_EQ(receives->state, static_cast<std::uint32_t>(ChannelState::kIdle));
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, AHungChannelShowsWhatItWaitsForAndSinceWhen) {
  void* context = this->nccl_.init(12, 2, &this->mask_);
  void* op = this->nccl_.coll(context, nullptr);
  void* sub = this->nccl_.proxy_op(context, op, 0, false);
  void* step = this->nccl_.proxy_step(context, sub, 0);
  this->nccl_.record(step, EventState::kStepRecvWait);
  const auto hung = this->channel(12, 0, false);
  ASSERT_TRUE(hung);
  EXPECT_EQ(hung->state, static_cast<std::uint32_t>(ChannelState::kRecvWait));
  EXPECT_EQ(hung->begun - hung->done, 1u);
  EXPECT_GT(hung->state_ticks, 0);
  this->nccl_.record(step, EventState::kStepRecvGpuWait, 10);
  EXPECT_GE(this->channel(12, 0, false)->state_ticks, hung->state_ticks);
  EXPECT_EQ(this->channel(12, 0, false)->moved, 1u) << "what needs no flush was received, too";
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, OpsWithoutANetworkHaveNoChannels) {
  void* context = this->nccl_.init(13, 1, &this->mask_);
  void* op = this->nccl_.coll(context, nullptr);
  EXPECT_NE(op, nullptr);
  this->nccl_.stop(op);
  void* send = this->nccl_.p2p(context, nullptr);
  EXPECT_NE(send, nullptr);
  this->nccl_.stop(send);
  EXPECT_EQ(this->grown(&smon_status::nccl_ops), 2u);
  EXPECT_FALSE(this->channel(13, 0, true));
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, StartWritesTheHandleAlsoWhereNothingBegins) {
  void* context = this->nccl_.init(14, 2, &this->mask_);
  using Host = Nccl<TypeParam>;
  EXPECT_EQ(this->nccl_.group(context), nullptr) << "no event that was asked for";
  EXPECT_EQ(this->nccl_.start(context, Host::event_of(nccl::kProxyCtrlEvent)), nullptr);
  EXPECT_EQ(this->nccl_.start(context, Host::event_of(nccl::kNetPluginEvent)), nullptr);
  EXPECT_EQ(this->nccl_.start(context, Host::event_of(0)), nullptr);
  EXPECT_EQ(this->nccl_.coll(nullptr, nullptr), nullptr);
  EXPECT_EQ(this->nccl_.coll(this, nullptr), nullptr) << "no context of ours";
  EXPECT_EQ(this->nccl_.proxy_step(context, nullptr, 0), nullptr) << "its transfer had been dropped";
  EXPECT_EQ(this->nccl_.proxy_step(context, this, 0), nullptr);
  void* handle = this;
  EXPECT_EQ(this->nccl_.plugin().callbacks.startEvent(context, &handle, nullptr), nccl::kSuccess);
  EXPECT_EQ(handle, nullptr);
  EXPECT_EQ(this->nccl_.plugin().callbacks.startEvent(context, nullptr, nullptr), nccl::kSuccess);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, WordsThatAreMissingOrNotKnownAreNoHarm) {
  void* context = this->nccl_.init(15, 1, &this->mask_);
  TypeParam event = Nccl<TypeParam>::event_of(nccl::kCollEvent);
  event.coll.func = "AllTomorrow";
  void* op = this->nccl_.start(context, event);
  EXPECT_NE(op, nullptr);
  this->nccl_.stop(op);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, NullRepeatedLateAndGarbageHandlesAreCounted) {
  void* context = this->nccl_.init(16, 2, &this->mask_);
  void* op = this->nccl_.coll(context, nullptr);
  void* sub = this->nccl_.proxy_op(context, op, 0, true);
  void* step = this->nccl_.proxy_step(context, sub, 0);
  this->nccl_.stop(nullptr);
  this->nccl_.record(nullptr, EventState::kStepSendWait);
  EXPECT_EQ(this->grown(&smon_status::nccl_stale_handles), 0u);
  this->nccl_.stop(step);
  this->nccl_.stop(step);
  this->nccl_.record(step, EventState::kStepSendWait, 10);
  this->nccl_.stop(sub);
  this->nccl_.stop(sub);
  EXPECT_EQ(this->nccl_.proxy_step(context, sub, 1), nullptr) << "its transfer has ended";
  this->nccl_.stop(op);
  this->nccl_.stop(op);
  EXPECT_EQ(this->grown(&smon_status::nccl_stale_handles), 5u);
  EXPECT_EQ(this->channel(16, 0, true)->done, 1u);
  EXPECT_EQ(this->channel(16, 0, true)->moved, 0u);
  for (const std::uintptr_t garbage : {std::uintptr_t{2}, std::uintptr_t{0xdeadbeef}, ~std::uintptr_t{0}}) {
    this->nccl_.stop(reinterpret_cast<void*>(garbage));
    this->nccl_.record(reinterpret_cast<void*>(garbage), EventState::kStepSendWait);
    this->nccl_.record(reinterpret_cast<void*>(garbage), EventState::kKernelChStop);
    this->nccl_.finalize(reinterpret_cast<void*>(garbage));
  }
  EXPECT_EQ(this->grown(&smon_status::nccl_foreign_handles), 12u);
  EXPECT_EQ(this->nccl_.plugin().callbacks.recordEventState(op, EventState::kKernelChStop, nullptr), nccl::kSuccess);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, LostStopsCostOneSlotEachUntilItIsNeeded) {
  void* context = this->nccl_.init(17, 2, &this->mask_);
  constexpr int kMoreThanThereAre = 10'000;
  std::vector<void*> handles;
  for (int i = 0; i < kMoreThanThereAre; ++i) {
    handles.push_back(this->nccl_.coll(context, nullptr));
    handles.push_back(this->nccl_.proxy_op(context, handles.back(), i % 4, true));
    ASSERT_NE(handles.back(), nullptr);
  }
  EXPECT_GT(this->grown(&smon_status::nccl_lost_ends), 0u);
  EXPECT_EQ(this->grown(&smon_status::nccl_ops), static_cast<std::uint64_t>(kMoreThanThereAre));
  // They come after all: those whose slots others have by now are stale, and the others make room for the next test.
  for (void* handle : handles) this->nccl_.stop(handle);
  EXPECT_GT(this->grown(&smon_status::nccl_stale_handles), 0u);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, FinalizeWithOpsInFlightEndsTheContextOnly) {
  void* context = this->nccl_.init(18, 2, &this->mask_);
  void* op = this->nccl_.coll(context, nullptr);
  void* sub = this->nccl_.proxy_op(context, op, 0, true);
  void* step = this->nccl_.proxy_step(context, sub, 0);
  this->nccl_.finalize(context);
  this->nccl_.record(step, EventState::kStepSendWait, 10);
  this->nccl_.stop(step);
  this->nccl_.stop(sub);
  this->nccl_.stop(op);
  EXPECT_EQ(this->channel(18, 0, true)->done, 1u) << "its proxy thread may come to an end later";
  EXPECT_EQ(this->grown(&smon_status::nccl_stale_handles), 0u);
  EXPECT_EQ(this->nccl_.coll(context, nullptr), nullptr);
  this->nccl_.finalize(context);
  EXPECT_EQ(this->grown(&smon_status::nccl_stale_handles), 2u);
}

TYPED_TEST(NcclHost, MoreCommunicatorsThanThereIsRoomForAreNotTracked) {
  std::array<void*, 300> contexts{};
  for (void*& context : contexts) {
    context = this->nccl_.init(19, 1, &this->mask_);
    ASSERT_NE(context, nullptr);
  }
  EXPECT_EQ(this->nccl_.coll(contexts.back(), nullptr), nullptr);
  EXPECT_GE(this->grown(&smon_status::nccl_untracked), 44u);
  for (void* context : contexts) this->nccl_.finalize(context);
  void* context = this->nccl_.init(19, 1, &this->mask_);
  EXPECT_NE(this->nccl_.coll(context, nullptr), nullptr) << "there is room again";
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclHost, AReloadedPluginIsTheSameInstance) {
  void* context = this->nccl_.init(20, 1, &this->mask_);
  for (int i = 0; i < 3; ++i) {
    Library again;
    const Nccl<TypeParam> nccl(again);
    EXPECT_EQ(&nccl.plugin(), &this->nccl_.plugin());
    void* other = nccl.init(21, 1, &this->mask_);
    nccl.finalize(other);
    again.close();
  }
  EXPECT_NE(this->nccl_.coll(context, nullptr), nullptr);
  this->nccl_.finalize(context);
}

}  // namespace
}  // namespace smon_rt::testing
