#include "contract/gpu_timer_contract.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

namespace smon_rt::contract {
namespace {

bool adopt(GpuTimerFixture& fixture, Findings& findings) {
  const auto adopted = fixture.timer().adopt(fixture.enter_context());
  return findings.expect(adopted.has_value(), "a current context is not adopted");
}

void without_a_context_there_is_no_event(GpuTimerFixture& fixture, Findings& findings) {
  fixture.leave_context();
  findings.expect(fixture.timer().current_context() == 0, "there is a current context where none should be");
  findings.expect(fixture.timer().record(fixture.stream()) == kNoEvent, "an event without a context");
}

void slots_that_are_not_in_use_fail_and_are_ignored(GpuTimerFixture& fixture, Findings& findings) {
  GpuTimer& timer = fixture.timer();
  for (const EventSlot slot : {kNoEvent, EventSlot{-1}, EventSlot{1}, EventSlot{1} << 40}) {
    const std::string name = "slot " + std::to_string(slot) + ", which is not in use, ";
    findings.expect(timer.query(slot) == EventState::kFailed, name + "is not failed");
    findings.expect(!timer.elapsed_ns(slot, slot), name + "has an elapsed time");
    timer.release(slot);
    findings.expect(timer.query(slot) == EventState::kFailed, name + "is not failed once released");
  }
}

void no_context_is_not_adopted(GpuTimerFixture& fixture, Findings& findings) {
  findings.expect(!fixture.timer().adopt(0), "context 0 is adopted");
}

void events_come_only_after_the_context_is_adopted(GpuTimerFixture& fixture, Findings& findings) {
  GpuTimer& timer = fixture.timer();
  const GpuContext context = fixture.enter_context();
  if (!findings.expect(context != 0, "no context could be entered")) return;
  findings.expect(timer.current_context() == context, "the current context is another than the one entered");
  findings.expect(timer.record(fixture.stream()) == kNoEvent, "an event before the context is adopted");
  if (!findings.expect(timer.adopt(context).has_value(), "a current context is not adopted")) return;
  findings.expect(timer.adopt(context).has_value(), "a context cannot be adopted twice");
  const EventSlot slot = timer.record(fixture.stream());
  findings.expect(slot != kNoEvent, "no event in an adopted context");
  timer.release(slot);
  findings.expect(timer.query(slot) == EventState::kFailed, "a released slot is not failed");
}

void a_device_has_one_uuid_if_it_has_any(GpuTimerFixture& fixture, Findings& findings) {
  const GpuContext context = fixture.enter_context();
  findings.expect(fixture.timer().device_uuid(0).empty(), "no context has a device with a UUID");
  if (!adopt(fixture, findings)) return;
  const std::string uuid = fixture.timer().device_uuid(context);
  findings.expect(uuid.empty() || uuid.starts_with("GPU-"), "a UUID that is none of a GPU: " + uuid);
  findings.expect(fixture.timer().device_uuid(context) == uuid, "a device has another UUID the second time");
}

void elapsed_time_has_a_sign_and_needs_ready_events(GpuTimerFixture& fixture, Findings& findings) {
  if (!adopt(fixture, findings)) return;
  GpuTimer& timer = fixture.timer();
  const EventSlot first = timer.record(fixture.stream());
  fixture.pass_time();
  const EventSlot second = timer.record(fixture.stream());
  fixture.finish_all();
  findings.expect(timer.query(first) == EventState::kReady, "the first event is not ready once all is done");
  findings.expect(timer.query(second) == EventState::kReady, "the second event is not ready once all is done");
  const auto forward = timer.elapsed_ns(first, second);
  const auto backward = timer.elapsed_ns(second, first);
  if (findings.expect(forward && backward, "no elapsed time between ready events")) {
    findings.expect(*forward > 0, "the later event is not later");
    findings.expect(*backward == -*forward, "the elapsed time from later to earlier is not the negative one");
  }
  timer.release(first);
  findings.expect(!timer.elapsed_ns(first, second), "an elapsed time from a released event");
  timer.release(second);
}

void nothing_is_recorded_into_a_capture(GpuTimerFixture& fixture, Findings& findings) {
  if (!adopt(fixture, findings)) return;
  GpuTimer& timer = fixture.timer();
  fixture.begin_capture(fixture.stream());
  findings.expect(timer.capture_state(fixture.stream()) == CaptureState::kCapturing, "a capture is not seen");
  findings.expect(timer.record(fixture.stream()) == kNoEvent, "an event in a capture");
  fixture.end_capture(fixture.stream());
  findings.expect(timer.capture_state(fixture.stream()) == CaptureState::kNotCapturing,
                  "a capture that ended is still seen");
  const EventSlot slot = timer.record(fixture.stream());
  findings.expect(slot != kNoEvent, "no event after a capture");
  timer.release(slot);
}

void when_full_there_is_no_event_until_one_is_released(GpuTimerFixture& fixture, Findings& findings) {
  if (!adopt(fixture, findings)) return;
  GpuTimer& timer = fixture.timer();
  constexpr std::size_t kMoreThanAnyPool = 1 << 20;
  std::set<EventSlot> slots;
  EventSlot slot = kNoEvent;
  while (slots.size() < kMoreThanAnyPool && (slot = timer.record(fixture.stream())) != kNoEvent) {
    if (!findings.expect(slots.insert(slot).second, "slot " + std::to_string(slot) + " is given twice")) break;
  }
  findings.expect(slots.size() < kMoreThanAnyPool, "the pool has no end");
  if (!findings.expect(!slots.empty(), "no event in an adopted context")) return;
  timer.release(*slots.begin());
  slots.erase(slots.begin());
  const EventSlot again = timer.record(fixture.stream());
  findings.expect(again != kNoEvent, "no event once one was released");
  timer.release(again);
  for (const EventSlot held : slots) timer.release(held);
}

void an_event_stays_until_its_last_owner_releases_it(GpuTimerFixture& fixture, Findings& findings) {
  if (!adopt(fixture, findings)) return;
  GpuTimer& timer = fixture.timer();
  const EventSlot slot = timer.record(fixture.stream());
  fixture.finish_all();
  if (timer.retain(slot)) {  // a timer may have one owner an event
    timer.release(slot);
    findings.expect(timer.query(slot) == EventState::kReady, "an event is gone while it still has an owner");
  }
  timer.release(slot);
  findings.expect(timer.query(slot) == EventState::kFailed, "an event that its last owner released is not failed");
  findings.expect(!timer.retain(slot), "a released event gets an owner");
  const EventSlot next = timer.record(fixture.stream());
  findings.expect(timer.query(slot) == EventState::kFailed, "a released slot is that of a later event");
  timer.release(slot);
  findings.expect(timer.query(next) != EventState::kFailed, "a late release reaches a later event");
  timer.release(next);
}

constexpr GpuTimerCheck kChecks[] = {
    {"WithoutAContextThereIsNoEvent", false, without_a_context_there_is_no_event},
    {"SlotsThatAreNotInUseFailAndAreIgnored", false, slots_that_are_not_in_use_fail_and_are_ignored},
    {"NoContextIsNotAdopted", false, no_context_is_not_adopted},
    {"EventsComeOnlyAfterTheContextIsAdopted", true, events_come_only_after_the_context_is_adopted},
    {"ADeviceHasOneUuidIfItHasAny", true, a_device_has_one_uuid_if_it_has_any},
    {"ElapsedTimeHasASignAndNeedsReadyEvents", true, elapsed_time_has_a_sign_and_needs_ready_events},
    {"AnEventStaysUntilItsLastOwnerReleasesIt", true, an_event_stays_until_its_last_owner_releases_it},
    {"NothingIsRecordedIntoACapture", true, nothing_is_recorded_into_a_capture},
    {"WhenFullThereIsNoEventUntilOneIsReleased", true, when_full_there_is_no_event_until_one_is_released},
};

}  // namespace

std::span<const GpuTimerCheck> gpu_timer_contract() {
  return kChecks;
}

}  // namespace smon_rt::contract
