#include "api/gpu.h"

#include "cuda/cuda_copier.h"
#include "cuda/cuda_timer.h"

namespace smon_rt {

std::unique_ptr<GpuTimer> find_gpu_timer(std::string& reason) {
  const auto driver = cuda::load_driver();
  if (driver) return std::make_unique<cuda::CudaTimer>(*driver);
  reason = driver.error().message;
  return nullptr;
}

std::unique_ptr<GpuCopier> find_gpu_copier(std::string& reason) {
  const auto driver = cuda::load_driver();
  if (driver) return std::make_unique<cuda::CudaCopier>(*driver);
  reason = driver.error().message;
  return std::make_unique<NullGpuCopier>();
}

}  // namespace smon_rt
