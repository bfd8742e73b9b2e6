#include "contract/own_gpu.h"

#include <stdexcept>
#include <string>

#include "base/dynamic_library.h"
#include "cuda/driver_symbols.h"

namespace smon_rt::contract {
namespace {

using cuda::Status;

/// Takes a function; the name of the first that is missing stays in `missing`.
template <typename Function>
void take(const DynamicLibrary& driver, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(driver.find(name));
  if (function == nullptr && missing.empty()) missing = name;
}

/// The suite cannot go on without its GPU: `smon check-gpu` shows the line.
void demand(Status status, const char* what) {
  if (status != Status::kSuccess) {
    throw std::runtime_error(std::string(what) + " gives " + std::to_string(static_cast<int>(status)));
  }
}

}  // namespace

Result<OwnGpu> OwnGpu::open() {
  auto driver = DynamicLibrary::open(cuda::kDriverLibrary);
  if (!driver) return Error{"no CUDA driver: " + driver.error().message};
  Functions functions;
  std::string missing;
  take(*driver, "cuInit", functions.init, missing);
  take(*driver, "cuDeviceGet", functions.device_get, missing);
  take(*driver, "cuDevicePrimaryCtxRetain", functions.primary_retain, missing);
  take(*driver, "cuCtxSetCurrent", functions.set_current, missing);
  take(*driver, "cuCtxSynchronize", functions.synchronize, missing);
  take(*driver, "cuStreamCreate", functions.stream_create, missing);
  take(*driver, "cuStreamBeginCapture_v2", functions.begin_capture, missing);
  take(*driver, "cuStreamEndCapture", functions.end_capture, missing);
  take(*driver, "cuGraphDestroy", functions.graph_destroy, missing);
  if (!missing.empty()) return Error{std::string(cuda::kDriverLibrary) + " has no " + missing};
  OwnGpu gpu(functions);
  cuda::Device device = 0;
  if (functions.init(0) != Status::kSuccess || functions.device_get(&device, 0) != Status::kSuccess) {
    return Error{"the CUDA driver finds no GPU"};
  }
  if (functions.primary_retain(&gpu.context_, device) != Status::kSuccess) return Error{"the GPU gives no context"};
  return gpu;
}

void OwnGpu::enter_context() {
  demand(functions_.set_current(context_), "cuCtxSetCurrent");
}

void OwnGpu::leave_context() {
  demand(functions_.set_current(nullptr), "cuCtxSetCurrent");
}

cuda::Handle OwnGpu::make_stream() {
  cuda::Handle stream = nullptr;
  demand(functions_.stream_create(&stream, cuda::kStreamNonBlocking), "cuStreamCreate");
  return stream;
}

void OwnGpu::begin_capture(cuda::Handle stream) {
  demand(functions_.begin_capture(stream, cuda::StreamCaptureMode::kGlobal), "cuStreamBeginCapture");
}

void OwnGpu::end_capture(cuda::Handle stream) {
  cuda::Handle graph = nullptr;
  // A capture that somebody broke gives an error here.
  demand(functions_.end_capture(stream, &graph), "cuStreamEndCapture");
  demand(functions_.graph_destroy(graph), "cuGraphDestroy");
}

void OwnGpu::synchronize() {
  demand(functions_.synchronize(), "cuCtxSynchronize");
}

}  // namespace smon_rt::contract
