#pragma once

#include <vector>

#include "cuda/driver_types.h"
#include "fakes/fake_gpu_streams.h"

// The part of fake_libcuda.so that has memory and copies it. In a process that a test steers streams do what they were
// told to when the test says so (fake_cuda_run), from the first stream on that the driver is asked for; then events
// happen there, and not by fake_cuda_finish. In a process on its own all copies are done at once.

namespace smon_rt::fake_cuda {

struct Symbol {
  const char* name;
  int version;
  void* function;
};

template <typename Function>
Symbol symbol(const char* name, int version, Function* function) {
  return {name, version, reinterpret_cast<void*>(function)};
}

/// The functions of this part behind those.
std::vector<Symbol> with_copies(std::vector<Symbol> symbols);

FakeGpuStreams& streams();
/// Whether streams are told to do anything but to record events.
bool has_work();
FakeGpuStreams::Event record(cuda::Handle stream);
void wait(cuda::Handle stream, const FakeGpuStreams::Event& event);
void reset();

/// Of fake_libcuda.cc: counts the call, fails it if it is to, or without a context.
cuda::Status begin(const char* symbol);
bool is_steered();

}  // namespace smon_rt::fake_cuda
