#include "contract/own_gpu.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>

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

/// In a thread of the driver, which must not call the driver; a check that fails must not stop it for ever.
void stand_still(void* argument) {
  const std::unique_ptr<std::shared_ptr<std::atomic<bool>>> is_let_go(
      static_cast<std::shared_ptr<std::atomic<bool>>*>(argument));
  for (int i = 0; i < 300'000 && !(*is_let_go)->load(); ++i)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
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
  take(*driver, "cuStreamSynchronize", functions.stream_synchronize, missing);
  take(*driver, "cuLaunchHostFunc", functions.launch_host, missing);
  take(*driver, "cuMemsetD8Async", functions.set_memory, missing);
  take(*driver, "cuMemcpyHtoD_v2", functions.copy_to_device, missing);
  take(*driver, "cuMemcpyDtoHAsync_v2", functions.copy_to_host, missing);
  take(*driver, "cuMemAlloc_v2", functions.allocate, missing);
  take(*driver, "cuMemFree_v2", functions.free, missing);
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

void OwnGpu::synchronize(cuda::Handle stream) {
  demand(functions_.stream_synchronize(stream), "cuStreamSynchronize");
}

cuda::DevicePointer OwnGpu::allocate(std::size_t bytes) {
  cuda::DevicePointer address = 0;
  demand(functions_.allocate(&address, bytes), "cuMemAlloc");
  return address;
}

void OwnGpu::free(cuda::DevicePointer address) {
  demand(functions_.free(address), "cuMemFree");
}

void OwnGpu::write(cuda::DevicePointer address, std::span<const std::byte> content) {
  demand(functions_.copy_to_device(address, content.data(), content.size()), "cuMemcpyHtoD");
}

void OwnGpu::fill(cuda::Handle stream, cuda::DevicePointer address, std::size_t bytes, std::byte value) {
  demand(functions_.set_memory(address, static_cast<unsigned char>(value), bytes, stream), "cuMemsetD8Async");
}

void OwnGpu::copy_to_host(cuda::Handle stream, std::byte* host, cuda::DevicePointer address, std::size_t bytes) {
  demand(functions_.copy_to_host(host, address, bytes, stream), "cuMemcpyDtoHAsync");
}

void OwnGpu::hold(cuda::Handle stream) {
  auto is_let_go = std::make_shared<std::atomic<bool>>(false);
  holds_[stream] = is_let_go;
  demand(functions_.launch_host(stream, stand_still, new std::shared_ptr(is_let_go)), "cuLaunchHostFunc");
}

void OwnGpu::let_go(cuda::Handle stream) {
  if (const auto hold = holds_.find(stream); hold != holds_.end()) hold->second->store(true);
  holds_.erase(stream);
}

}  // namespace smon_rt::contract
