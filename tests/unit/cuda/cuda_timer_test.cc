#include "cuda/cuda_timer.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <set>
#include <string>
#include <thread>

#include "contract/gpu_timer_gtest.h"
#include "fakes/fake_cuda_fixture.h"

namespace smon_rt::contract {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, GpuTimerContract, testing::ValuesIn(contract_cases<FakeCudaFixture>()), case_name);

class CudaTimerTest : public testing::Test {
 protected:
  GpuContext adopt() {
    const GpuContext context = fixture_.enter_context();
    EXPECT_TRUE(timer().adopt(context));
    return context;
  }
  GpuTimer& timer() { return fixture_.timer(); }

  FakeCudaFixture fixture_;
  const GpuStream stream_ = fixture_.stream();
};

TEST_F(CudaTimerTest, AnEventSaysItsContextAndAContextItsDevice) {
  const GpuContext context = adopt();
  const EventSlot slot = timer().record(stream_);
  EXPECT_EQ(timer().context_of(slot), context);
  EXPECT_EQ(timer().device_of(context), 3);
  timer().release(slot);
  EXPECT_EQ(timer().context_of(slot), 0u);
  EXPECT_EQ(timer().device_of(context + 8), -1);
}

TEST_F(CudaTimerTest, ADeviceHasItsUuidAsNvidiaSmiWritesIt) {
  const GpuContext context = adopt();
  EXPECT_EQ(timer().device_uuid(context), "GPU-b4000000-0000-0000-0000-000000000003");
  EXPECT_EQ(timer().device_uuid(context + 8), "");
  fake_cuda_fail("cuDeviceGetUuid", static_cast<int>(cuda::Status::kInvalidHandle));
  FakeCudaFixture other;
  fake_cuda_fail("cuDeviceGetUuid", static_cast<int>(cuda::Status::kInvalidHandle));
  const GpuContext unnamed = other.enter_context();
  EXPECT_TRUE(other.timer().adopt(unnamed)) << "events need no name of their device";
  EXPECT_EQ(other.timer().device_uuid(unnamed), "");
}

TEST_F(CudaTimerTest, ASharedEventStaysUntilBothHaveReleasedIt) {
  adopt();
  const EventSlot slot = timer().record(stream_);
  ASSERT_TRUE(timer().retain(slot));
  timer().release(slot);
  fixture_.finish_all();
  EXPECT_EQ(timer().query(slot), EventState::kReady);
  timer().release(slot);
  EXPECT_EQ(timer().query(slot), EventState::kFailed);
  EXPECT_FALSE(timer().retain(slot));
}

TEST_F(CudaTimerTest, TheDrainThreadNeedsNoContextOfItsOwnAndKeepsNone) {
  const GpuContext context = fixture_.enter_context();
  EventSlot slot = kNoEvent;
  std::thread([&] {
    EXPECT_TRUE(timer().adopt(context));
    EXPECT_EQ(timer().current_context(), 0u);
  }).join();
  slot = timer().record(stream_);
  ASSERT_NE(slot, kNoEvent);
  fixture_.finish_all();
  std::thread([&] {
    EXPECT_EQ(timer().query(slot), EventState::kReady);
    EXPECT_TRUE(timer().elapsed_ns(slot, slot));
    EXPECT_EQ(timer().current_context(), 0u);
  }).join();
}

TEST_F(CudaTimerTest, NoCallOfTheDrainThreadBreaksACaptureOfTheJob) {
  const GpuContext context = adopt();
  const EventSlot slot = timer().record(stream_);
  fixture_.finish_all();
  fake_cuda_capture(FakeCudaFixture::handle(0x8000), 1);
  std::thread([&] {
    EXPECT_EQ(timer().query(slot), EventState::kReady);
    EXPECT_TRUE(timer().elapsed_ns(slot, slot));
  }).join();
  EXPECT_EQ(fake_cuda_is_capture_broken(), 0);
  fake_cuda_set_current(FakeCudaFixture::handle(context));
  EXPECT_NE(timer().record(stream_), kNoEvent) << "another stream than the captured one";
  EXPECT_EQ(timer().capture_state(0), CaptureState::kCapturing) << "the default stream would take part in it";
  EXPECT_EQ(timer().record(0), kNoEvent);
}

TEST_F(CudaTimerTest, EventsOfTwoContextsAreApartAndCannotBeCompared) {
  adopt();
  const EventSlot first = timer().record(stream_);
  void* other = fake_cuda_make_context(1);
  ASSERT_TRUE(timer().adopt(reinterpret_cast<std::uintptr_t>(other)));
  fake_cuda_set_current(other);
  const EventSlot second = timer().record(stream_);
  ASSERT_NE(second, kNoEvent);
  fixture_.finish_all();
  EXPECT_FALSE(timer().elapsed_ns(first, second));
  EXPECT_NE(timer().context_of(first), timer().context_of(second));
  EXPECT_EQ(timer().query(first), EventState::kReady) << "whichever context is current";
}

TEST_F(CudaTimerTest, EventsOfALostContextFailAndItIsNotAdoptedAgain) {
  const GpuContext context = adopt();
  const EventSlot slot = timer().record(stream_);
  fake_cuda_lose_context(FakeCudaFixture::handle(context));
  EXPECT_EQ(timer().query(slot), EventState::kFailed);
  EXPECT_FALSE(timer().elapsed_ns(slot, slot));
  EXPECT_EQ(timer().record(stream_), kNoEvent);
  timer().release(slot);

  void* lost = fake_cuda_make_context(0);
  fake_cuda_lose_context(lost);
  const auto adopted = timer().adopt(reinterpret_cast<std::uintptr_t>(lost));
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().message, "no times of a GPU: its context cannot be entered");
}

TEST_F(CudaTimerTest, AContextThatGivesNoEventsKeepsNone) {
  const GpuContext context = fixture_.enter_context();
  fake_cuda_fail("cuEventCreate", 2);
  const auto adopted = timer().adopt(context);
  ASSERT_FALSE(adopted);
  EXPECT_EQ(adopted.error().message, "no times of a GPU: its context gives no events: the driver says 2");
  fake_cuda_fail("cuEventCreate", 0);
  EXPECT_TRUE(timer().adopt(context)) << "it may be tried again";
}

TEST_F(CudaTimerTest, AnEventThatCannotBeRecordedIsFreeAgain) {
  adopt();
  fake_cuda_fail("cuEventRecord", static_cast<int>(cuda::Status::kInvalidHandle));
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(timer().record(stream_), kNoEvent);
  fake_cuda_fail("cuEventRecord", 0);
  EXPECT_NE(timer().record(stream_), kNoEvent) << "5,000 failures are more than all events";
}

TEST_F(CudaTimerTest, MoreContextsThanAreKeptAreRefused) {
  bool is_refused = false;
  for (int i = 0; i < 20 && !is_refused; ++i) {
    is_refused = !timer().adopt(reinterpret_cast<std::uintptr_t>(fake_cuda_make_context(i)));
  }
  EXPECT_TRUE(is_refused);
}

TEST_F(CudaTimerTest, TheCurrentStreamIsTorchsOnceItIsLoadedElseTheDefaultOne) {
  void* stream = FakeCudaFixture::handle(0x1234);
  fake_torch_set_stream(stream, 0);
  const GpuContext context = fixture_.enter_context();
  EXPECT_EQ(timer().current_stream(context), 0u) << "not adopted yet";
  adopt();
  EXPECT_EQ(timer().current_stream(context), 0x1234u);
  fake_torch_set_stream(stream, 1);
  EXPECT_EQ(timer().current_stream(context), 0u) << "torch gives an error";

  const auto driver = cuda::load_driver(FAKE_LIBCUDA);
  cuda::CudaTimer without(*driver, {.torch_library = "libno_torch.so"});
  ASSERT_TRUE(without.adopt(context));
  fake_torch_set_stream(stream, 0);
  EXPECT_EQ(without.current_stream(context), 0u);
}

TEST_F(CudaTimerTest, AForkedChildHasNoContext) {
  adopt();
  fake_cuda_fail("cuCtxGetCurrent", static_cast<int>(cuda::Status::kNotInitialized));
  EXPECT_EQ(timer().current_context(), 0u);
  EXPECT_EQ(timer().record(stream_), kNoEvent);
}

/// A timer of a process that exits, and what it is asked then.
struct AtExit {
  GpuTimer* timer = nullptr;
  GpuContext context = 0;
  GpuStream stream = 0;
  EventSlot slot = kNoEvent;
} g_at_exit;

int driver_calls() {
  int calls = 0;
  for (const char* name :
       {"cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery", "cuCtxPushCurrent"}) {
    calls += fake_cuda_calls(name);
  }
  return calls;
}

/// Exits as a process does whose driver has registered an exit handler before anything of ours was made: 0 if the
/// driver was not called any more by then.
[[noreturn]] void exit_with_a_timer(GpuContext context, GpuStream stream) {
  std::atexit([] {
    GpuTimer& timer = *g_at_exit.timer;
    const int before = driver_calls();
    const bool fails = timer.current_context() == 0 && timer.record(g_at_exit.stream) == kNoEvent &&
                       timer.capture_state(g_at_exit.stream) == CaptureState::kUnknown &&
                       timer.query(g_at_exit.slot) == EventState::kFailed && !timer.adopt(g_at_exit.context + 8);
    ::_exit(fails ? driver_calls() - before : 99);
  });
  const auto driver = cuda::load_driver(FAKE_LIBCUDA);
  auto* timer = new cuda::CudaTimer(*driver);
  if (!timer->adopt(context)) ::_exit(98);
  g_at_exit = {timer, context, stream, timer->record(stream)};
  if (g_at_exit.slot == kNoEvent) ::_exit(97);
  std::exit(96);
}

TEST_F(CudaTimerTest, OnceTheProcessExitsTheDriverIsLeftAlone) {
  const GpuContext context = fixture_.enter_context();
  const pid_t child = ::fork();
  if (child == 0) exit_with_a_timer(context, stream_);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
}

}  // namespace
}  // namespace smon_rt::contract
