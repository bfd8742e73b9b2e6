#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "cuda/driver_types.h"

namespace smon_rt::cuda {

/// The library of torch that knows its streams.
inline constexpr char kTorchLibrary[] = "libtorch_cuda.so";

/// Into which stream of a device the calling thread launches, as torch has it: asked through torch's own C interface,
/// taken from what the process has loaded. torch is never loaded here.
///
/// Threading: look() one thread; of() any.
class TorchStream {
 public:
  explicit TorchStream(std::string library = kTorchLibrary) : library_(std::move(library)) {}

  /// Finds torch's function, if it has been loaded by now.
  void look();

  /// The default stream, 0, as long as torch has not been found, or if it gives an error.
  Handle of(Device device) const noexcept;

 private:
  // aoti_torch_get_current_cuda_stream of torch's stable C interface: 0 is success.
  using Function = std::int32_t (*)(std::int32_t device, void** stream);

  std::string library_;
  std::atomic<Function> function_{nullptr};
};

}  // namespace smon_rt::cuda
