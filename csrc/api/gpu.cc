#include "api/gpu.h"

#include "cuda/cuda_timer.h"

namespace smon_rt {

std::unique_ptr<GpuTimer> find_gpu_timer(std::string& reason) {
  const auto driver = cuda::load_driver();
  if (driver) return std::make_unique<cuda::CudaTimer>(*driver);
  reason = driver.error().message;
  return nullptr;
}

}  // namespace smon_rt
