#include <algorithm>
#include <string>
#include <vector>

#include "contract/gpu_timer_fixtures.h"
#include "contract/gpu_timer_gtest.h"

namespace smon_rt::contract {
namespace {

INSTANTIATE_TEST_SUITE_P(Null, GpuTimerContract, testing::ValuesIn(contract_cases<NullGpuTimerFixture>(false)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Fake, GpuTimerContract, testing::ValuesIn(contract_cases<FakeGpuTimerFixture>()), case_name);

enum class Fault {
  kContextWithoutOne,
  kUnknownSlotIsReady,
  kAdoptsNothing,
  kRecordsBeforeAdopting,
  kElapsedHasNoSign,
  kCaptureUnseen,
  kGivesASlotTwice,
  kRetainsNothing,
};

/// The fake with one thing wrong.
class FaultyGpuTimer final : public GpuTimer {
 public:
  FaultyGpuTimer(GpuTimer& timer, Fault fault) : timer_(timer), fault_(fault) {}

  GpuContext current_context() noexcept override {
    const GpuContext context = timer_.current_context();
    return context == 0 && fault_ == Fault::kContextWithoutOne ? 1 : context;
  }
  CaptureState capture_state(GpuStream stream) noexcept override {
    return fault_ == Fault::kCaptureUnseen ? CaptureState::kNotCapturing : timer_.capture_state(stream);
  }
  EventSlot record(GpuStream stream) noexcept override {
    if (fault_ == Fault::kRecordsBeforeAdopting && timer_.current_context() != 0) {
      if (!timer_.adopt(timer_.current_context())) return kNoEvent;
    }
    const EventSlot slot = timer_.record(stream);
    return fault_ == Fault::kGivesASlotTwice && slot > 1 ? 1 : slot;
  }
  bool retain(EventSlot slot) noexcept override {
    if (fault_ != Fault::kRetainsNothing) return timer_.retain(slot);
    return timer_.query(slot) != EventState::kFailed;
  }
  Result<void> adopt(GpuContext context) override {
    return fault_ == Fault::kAdoptsNothing && context == 0 ? Result<void>{} : timer_.adopt(context);
  }
  EventState query(EventSlot slot) noexcept override {
    return fault_ == Fault::kUnknownSlotIsReady && slot < 0 ? EventState::kReady : timer_.query(slot);
  }
  Result<std::int64_t> elapsed_ns(EventSlot from, EventSlot to) override {
    Result<std::int64_t> elapsed = timer_.elapsed_ns(from, to);
    if (fault_ == Fault::kElapsedHasNoSign && elapsed && *elapsed < 0) return -*elapsed;
    return elapsed;
  }
  void release(EventSlot slot) noexcept override { timer_.release(slot); }

 private:
  GpuTimer& timer_;
  Fault fault_;
};

class FaultyFixture final : public FakeGpuTimerFixture {
 public:
  explicit FaultyFixture(Fault fault) : faulty_(FakeGpuTimerFixture::timer(), fault) {}
  GpuTimer& timer() override { return faulty_; }

 private:
  FaultyGpuTimer faulty_;
};

std::vector<std::string> checks_that_fail(Fault fault) {
  std::vector<std::string> names;
  for (const GpuTimerCheck& check : gpu_timer_contract()) {
    FaultyFixture fixture(fault);
    Findings findings;
    check.run(fixture, findings);
    if (!findings.lines().empty()) names.emplace_back(check.name);
  }
  return names;
}

TEST(GpuTimerContractItself, FindsEachPlantedFault) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(checks_that_fail(Fault::kContextWithoutOne), Names{"WithoutAContextThereIsNoEvent"});
  EXPECT_EQ(checks_that_fail(Fault::kUnknownSlotIsReady), Names{"SlotsThatAreNotInUseFailAndAreIgnored"});
  EXPECT_EQ(checks_that_fail(Fault::kAdoptsNothing), Names{"NoContextIsNotAdopted"});
  EXPECT_EQ(checks_that_fail(Fault::kRecordsBeforeAdopting), Names{"EventsComeOnlyAfterTheContextIsAdopted"});
  EXPECT_EQ(checks_that_fail(Fault::kElapsedHasNoSign), Names{"ElapsedTimeHasASignAndNeedsReadyEvents"});
  EXPECT_EQ(checks_that_fail(Fault::kCaptureUnseen), Names{"NothingIsRecordedIntoACapture"});
  EXPECT_EQ(checks_that_fail(Fault::kRetainsNothing), Names{"AnEventStaysUntilItsLastOwnerReleasesIt"});
  const Names full = checks_that_fail(Fault::kGivesASlotTwice);
  EXPECT_NE(std::ranges::find(full, "WhenFullThereIsNoEventUntilOneIsReleased"), full.end());
}

}  // namespace
}  // namespace smon_rt::contract
