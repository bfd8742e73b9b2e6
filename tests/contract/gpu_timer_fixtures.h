#pragma once

#include <cstdint>

#include "contract/gpu_timer_contract.h"
#include "fakes/fake_gpu_timer.h"

namespace smon_rt::contract {

class NullGpuTimerFixture : public GpuTimerFixture {
 public:
  GpuTimer& timer() override { return timer_; }
  GpuStream stream() override { return 7; }
  GpuContext enter_context() override { return 0; }
  void leave_context() override {}
  void begin_capture(GpuStream) override {}
  void end_capture(GpuStream) override {}
  void pass_time() override {}
  void finish_all() override {}

 private:
  NullGpuTimer timer_;
};

class FakeGpuTimerFixture : public GpuTimerFixture {
 public:
  GpuTimer& timer() override { return timer_; }
  GpuStream stream() override { return 7; }
  GpuContext enter_context() override {
    timer_.set_context(kContext);
    return kContext;
  }
  void leave_context() override { timer_.set_context(0); }
  void begin_capture(GpuStream stream) override { timer_.set_capturing(stream, true); }
  void end_capture(GpuStream stream) override { timer_.set_capturing(stream, false); }
  void pass_time() override { timer_.set_device_time(now_ns_ += 1000); }
  void finish_all() override { timer_.finish(now_ns_); }

 protected:
  static constexpr GpuContext kContext = 42;

 private:
  FakeGpuTimer timer_;
  std::int64_t now_ns_ = 0;
};

}  // namespace smon_rt::contract
