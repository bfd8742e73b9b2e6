#include "cuda/torch_stream.h"

#include "base/dynamic_library.h"

namespace smon_rt::cuda {

void TorchStream::look() {
  if (function_.load(std::memory_order_relaxed) != nullptr) return;
  const auto torch = DynamicLibrary::open_loaded(library_);
  if (!torch) return;
  // release: pairs with the acquire in of().
  function_.store(reinterpret_cast<Function>(torch->find("aoti_torch_get_current_cuda_stream")),
                  std::memory_order_release);
}

Handle TorchStream::of(Device device) const noexcept {
  const Function function = function_.load(std::memory_order_acquire);
  void* stream = nullptr;
  if (function == nullptr || function(device, &stream) != 0) return nullptr;
  return stream;
}

}  // namespace smon_rt::cuda
