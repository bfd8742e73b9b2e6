#include <cstdint>

#include "contract/gpu_timer_contract.h"
#include "fakes/fake_gpu_timer.h"

namespace smon_rt {
namespace {

struct NullGpuTimerFixture {
  static constexpr GpuStream kStream = 7;
  GpuTimer& timer() { return timer_; }
  GpuContext enter_context() { return 0; }
  void leave_context() {}
  void begin_capture(GpuStream) {}
  void end_capture(GpuStream) {}
  void pass_time() {}
  void finish_all() {}

 private:
  NullGpuTimer timer_;
};

struct FakeGpuTimerFixture {
  static constexpr GpuStream kStream = 7;
  GpuTimer& timer() { return timer_; }
  GpuContext enter_context() {
    timer_.set_context(42);
    return 42;
  }
  void leave_context() { timer_.set_context(0); }
  void begin_capture(GpuStream stream) { timer_.set_capturing(stream, true); }
  void end_capture(GpuStream stream) { timer_.set_capturing(stream, false); }
  void pass_time() { timer_.set_device_time(now_ns_ += 1000); }
  void finish_all() { timer_.finish(now_ns_); }

 private:
  FakeGpuTimer timer_;
  std::int64_t now_ns_ = 0;
};

INSTANTIATE_TYPED_TEST_SUITE_P(Null, GpuTimerContract, NullGpuTimerFixture);
INSTANTIATE_TYPED_TEST_SUITE_P(Fake, GpuTimerContract, FakeGpuTimerFixture);
INSTANTIATE_TYPED_TEST_SUITE_P(Fake, GpuTimerEventsContract, FakeGpuTimerFixture);

}  // namespace
}  // namespace smon_rt
