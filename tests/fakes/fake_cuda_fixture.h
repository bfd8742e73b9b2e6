#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "contract/gpu_timer_contract.h"
#include "cuda/cuda_timer.h"
#include "fakes/fake_libcuda.h"

namespace smon_rt::contract {

/// CudaTimer over fake_libcuda.so.
class FakeCudaFixture : public GpuTimerFixture {
 public:
  FakeCudaFixture() {
    fake_cuda_reset();
    const auto driver = cuda::load_driver(FAKE_LIBCUDA);
    EXPECT_TRUE(driver);
    timer_ = std::make_unique<cuda::CudaTimer>(*driver, cuda::CudaTimerOptions{.torch_library = FAKE_LIBCUDA});
  }
  GpuTimer& timer() override { return *timer_; }
  GpuStream stream() override { return 0x7000; }
  GpuContext enter_context() override {
    if (context_ == nullptr) context_ = fake_cuda_make_context(3);
    fake_cuda_set_current(context_);
    return reinterpret_cast<std::uintptr_t>(context_);
  }
  void leave_context() override { fake_cuda_set_current(nullptr); }
  void begin_capture(GpuStream stream) override { fake_cuda_capture(handle(stream), 1); }
  void end_capture(GpuStream stream) override { fake_cuda_capture(handle(stream), 0); }
  void pass_time() override { fake_cuda_set_time(now_ns_ += 1000); }
  void finish_all() override { fake_cuda_finish(now_ns_); }

  static void* handle(std::uint64_t number) { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number)); }

 private:
  std::unique_ptr<cuda::CudaTimer> timer_;
  void* context_ = nullptr;
  std::int64_t now_ns_ = 0;
};

}  // namespace smon_rt::contract
