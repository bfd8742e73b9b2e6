#pragma once

#include <gtest/gtest.h>

#include <set>

#include "record/gpu_timer.h"

// What every GpuTimer does. An implementation gives a fixture with
//   GpuTimer& timer();
//   GpuContext enter_context();          // makes a context current to this thread and returns it
//   void leave_context();                // none is current afterwards
//   void begin_capture(GpuStream), end_capture(GpuStream);
//   void pass_time();                    // later events have a later device time
//   void finish_all();                   // all that was recorded is ready
//   static constexpr GpuStream kStream;
// and instantiates INSTANTIATE_TYPED_TEST_SUITE_P(Fake, GpuTimerContract, FakeFixture); and, unless it never gives an
// event, the same for GpuTimerEventsContract.

namespace smon_rt {

template <typename Fixture>
class GpuTimerContract : public testing::Test {
 protected:
  Fixture fixture_;
};
TYPED_TEST_SUITE_P(GpuTimerContract);

template <typename Fixture>
class GpuTimerEventsContract : public GpuTimerContract<Fixture> {};
TYPED_TEST_SUITE_P(GpuTimerEventsContract);

TYPED_TEST_P(GpuTimerContract, WithoutAContextThereIsNoEvent) {
  this->fixture_.leave_context();
  EXPECT_EQ(this->fixture_.timer().current_context(), 0u);
  EXPECT_EQ(this->fixture_.timer().record(TypeParam::kStream), kNoEvent);
}

TYPED_TEST_P(GpuTimerContract, SlotsThatAreNotInUseFailAndAreIgnored) {
  GpuTimer& timer = this->fixture_.timer();
  for (const EventSlot slot : {kNoEvent, EventSlot{-1}, EventSlot{1}, EventSlot{1} << 40}) {
    EXPECT_EQ(timer.query(slot), EventState::kFailed);
    EXPECT_FALSE(timer.elapsed_ns(slot, slot));
    timer.release(slot);
    EXPECT_EQ(timer.query(slot), EventState::kFailed);
  }
}

TYPED_TEST_P(GpuTimerContract, NoContextIsNotAdopted) {
  EXPECT_FALSE(this->fixture_.timer().adopt(0));
}

TYPED_TEST_P(GpuTimerEventsContract, EventsComeOnlyAfterTheContextIsAdopted) {
  GpuTimer& timer = this->fixture_.timer();
  const GpuContext context = this->fixture_.enter_context();
  ASSERT_NE(context, 0u);
  EXPECT_EQ(timer.current_context(), context);
  EXPECT_EQ(timer.record(TypeParam::kStream), kNoEvent);
  ASSERT_TRUE(timer.adopt(context));
  ASSERT_TRUE(timer.adopt(context)) << "adopting twice is fine";
  const EventSlot slot = timer.record(TypeParam::kStream);
  EXPECT_NE(slot, kNoEvent);
  timer.release(slot);
  EXPECT_EQ(timer.query(slot), EventState::kFailed);
}

TYPED_TEST_P(GpuTimerEventsContract, ElapsedTimeHasASignAndNeedsReadyEvents) {
  GpuTimer& timer = this->fixture_.timer();
  ASSERT_TRUE(timer.adopt(this->fixture_.enter_context()));
  const EventSlot first = timer.record(TypeParam::kStream);
  this->fixture_.pass_time();
  const EventSlot second = timer.record(TypeParam::kStream);
  this->fixture_.finish_all();
  ASSERT_EQ(timer.query(first), EventState::kReady);
  ASSERT_EQ(timer.query(second), EventState::kReady);
  const auto forward = timer.elapsed_ns(first, second);
  const auto backward = timer.elapsed_ns(second, first);
  ASSERT_TRUE(forward && backward);
  EXPECT_GT(*forward, 0);
  EXPECT_EQ(*backward, -*forward);
  timer.release(first);
  EXPECT_FALSE(timer.elapsed_ns(first, second));
  timer.release(second);
}

TYPED_TEST_P(GpuTimerEventsContract, NothingIsRecordedIntoACapture) {
  GpuTimer& timer = this->fixture_.timer();
  ASSERT_TRUE(timer.adopt(this->fixture_.enter_context()));
  this->fixture_.begin_capture(TypeParam::kStream);
  EXPECT_EQ(timer.capture_state(TypeParam::kStream), CaptureState::kCapturing);
  EXPECT_EQ(timer.record(TypeParam::kStream), kNoEvent);
  this->fixture_.end_capture(TypeParam::kStream);
  EXPECT_EQ(timer.capture_state(TypeParam::kStream), CaptureState::kNotCapturing);
  const EventSlot slot = timer.record(TypeParam::kStream);
  EXPECT_NE(slot, kNoEvent);
  timer.release(slot);
}

TYPED_TEST_P(GpuTimerEventsContract, WhenFullThereIsNoEventUntilOneIsReleased) {
  GpuTimer& timer = this->fixture_.timer();
  ASSERT_TRUE(timer.adopt(this->fixture_.enter_context()));
  std::set<EventSlot> slots;
  constexpr std::size_t kMoreThanAnyPool = 1 << 20;
  EventSlot slot = kNoEvent;
  while (slots.size() < kMoreThanAnyPool && (slot = timer.record(TypeParam::kStream)) != kNoEvent) {
    EXPECT_TRUE(slots.insert(slot).second) << "given twice";
  }
  ASSERT_FALSE(slots.empty());
  ASSERT_LT(slots.size(), kMoreThanAnyPool);
  timer.release(*slots.begin());
  const EventSlot again = timer.record(TypeParam::kStream);
  EXPECT_NE(again, kNoEvent);
  timer.release(again);
  slots.erase(slots.begin());
  for (const EventSlot held : slots) timer.release(held);
}

REGISTER_TYPED_TEST_SUITE_P(GpuTimerContract, WithoutAContextThereIsNoEvent, SlotsThatAreNotInUseFailAndAreIgnored,
                            NoContextIsNotAdopted);
REGISTER_TYPED_TEST_SUITE_P(GpuTimerEventsContract, EventsComeOnlyAfterTheContextIsAdopted,
                            ElapsedTimeHasASignAndNeedsReadyEvents, NothingIsRecordedIntoACapture,
                            WhenFullThereIsNoEventUntilOneIsReleased);

}  // namespace smon_rt
