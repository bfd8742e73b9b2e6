#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/result.h"
#include "cuda/driver_types.h"

namespace smon_rt::contract {

/// What a program that uses a GPU does, and recording never: makes a context and streams, captures, waits.
///
/// Threading: one thread. Contexts and streams are kept to the end of the process.
class OwnGpu {
 public:
  /// Of the first GPU; an error says why there is none.
  static Result<OwnGpu> open();

  void enter_context();
  void leave_context();
  cuda::Handle context() const { return context_; }
  /// Does not wait for the default stream, nor that one for it.
  cuda::Handle make_stream();
  /// Nothing that other threads do can be captured.
  void begin_capture(cuda::Handle stream);
  void end_capture(cuda::Handle stream);
  /// Until the context, or one stream, has done all that was launched.
  void synchronize();
  void synchronize(cuda::Handle stream);

  cuda::DevicePointer allocate(std::size_t bytes);
  void free(cuda::DevicePointer address);
  void write(cuda::DevicePointer address, std::span<const std::byte> content);
  void fill(cuda::Handle stream, cuda::DevicePointer address, std::size_t bytes, std::byte value);
  void copy_to_host(cuda::Handle stream, std::byte* host, cuda::DevicePointer address, std::size_t bytes);
  /// The stream stands still there until it is let go, or for half a minute.
  void hold(cuda::Handle stream);
  void let_go(cuda::Handle stream);

 private:
  struct Functions {
    cuda::Status (*init)(unsigned int flags) = nullptr;
    cuda::Status (*device_get)(cuda::Device* device, int ordinal) = nullptr;
    cuda::Status (*primary_retain)(cuda::Handle* context, cuda::Device device) = nullptr;
    cuda::Status (*set_current)(cuda::Handle context) = nullptr;
    cuda::Status (*synchronize)() = nullptr;
    cuda::Status (*stream_create)(cuda::Handle* stream, unsigned int flags) = nullptr;
    cuda::Status (*begin_capture)(cuda::Handle stream, cuda::StreamCaptureMode mode) = nullptr;
    cuda::Status (*end_capture)(cuda::Handle stream, cuda::Handle* graph) = nullptr;
    cuda::Status (*graph_destroy)(cuda::Handle graph) = nullptr;
    cuda::Status (*stream_synchronize)(cuda::Handle stream) = nullptr;
    cuda::Status (*launch_host)(cuda::Handle stream, void (*function)(void*), void* argument) = nullptr;
    cuda::Status (*set_memory)(cuda::DevicePointer, unsigned char, std::size_t bytes, cuda::Handle stream) = nullptr;
    cuda::Status (*copy_to_device)(cuda::DevicePointer, const void* host, std::size_t bytes) = nullptr;
    cuda::MemcpyDtoHAsync copy_to_host = nullptr;
    cuda::MemAlloc allocate = nullptr;
    cuda::MemFree free = nullptr;
  };

  explicit OwnGpu(const Functions& functions) : functions_(functions) {}

  Functions functions_;
  cuda::Handle context_ = nullptr;
  std::map<cuda::Handle, std::shared_ptr<std::atomic<bool>>> holds_;
};

}  // namespace smon_rt::contract
