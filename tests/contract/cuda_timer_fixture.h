#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>

#include "contract/gpu_timer_contract.h"
#include "contract/own_gpu.h"
#include "cuda/cuda_timer.h"
#include "cuda/driver_symbols.h"

namespace smon_rt::contract {

/// CudaTimer on whatever driver the loader finds: a GPU's.
class CudaTimerFixture : public GpuTimerFixture {
 public:
  /// Why there is none here, "" if there is.
  static std::string why_not() {
    const auto gpu = OwnGpu::open();
    if (!gpu) return gpu.error().message;
    const auto driver = cuda::load_driver();
    return driver ? "" : driver.error().message;
  }

  CudaTimerFixture() : gpu_(*OwnGpu::open()), timer_(*cuda::load_driver()) {
    gpu_.enter_context();
    stream_ = gpu_.make_stream();
    gpu_.leave_context();
  }
  GpuTimer& timer() override { return timer_; }
  GpuStream stream() override { return reinterpret_cast<std::uintptr_t>(stream_); }
  GpuContext enter_context() override {
    gpu_.enter_context();
    return reinterpret_cast<std::uintptr_t>(gpu_.context());
  }
  void leave_context() override { gpu_.leave_context(); }
  void begin_capture(GpuStream) override { gpu_.begin_capture(stream_); }
  void end_capture(GpuStream) override { gpu_.end_capture(stream_); }
  /// A GPU's time goes on by itself, in steps of half a microsecond.
  void pass_time() override {
    gpu_.synchronize();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  void finish_all() override { gpu_.synchronize(); }

 private:
  OwnGpu gpu_;
  cuda::CudaTimer timer_;
  cuda::Handle stream_ = nullptr;
};

}  // namespace smon_rt::contract
