#pragma once

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
  /// Until the context has done all that was launched.
  void synchronize();

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
  };

  explicit OwnGpu(const Functions& functions) : functions_(functions) {}

  Functions functions_;
  cuda::Handle context_ = nullptr;
};

}  // namespace smon_rt::contract
