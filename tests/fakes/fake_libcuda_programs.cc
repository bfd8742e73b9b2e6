// The driver's functions that programs on a GPU use, and recording never, under their real names: for the contract's
// program and for `smon check-gpu`, which find them as they find a GPU's.

#include <cstdint>
#include <cstring>
#include <mutex>
#include <thread>

#include "cuda/driver_types.h"
#include "fakes/fake_libcuda.h"
#include "fakes/fake_libcuda_copies.h"

namespace {

using namespace smon_rt::cuda;

std::mutex g_mutex;
std::int64_t g_now_ns = 0;
std::uintptr_t g_streams = 0;

}  // namespace

extern "C" {

Status cuInit(unsigned int) {
  return Status::kSuccess;
}

Status cuDriverGetVersion(int* version) {
  *version = 13000;
  return Status::kSuccess;
}

Status cuDeviceGetCount(int* count) {
  *count = 1;
  return Status::kSuccess;
}

Status cuDeviceGet(Device* device, int ordinal) {
  *device = ordinal;
  return Status::kSuccess;
}

Status cuDeviceGetName(char* name, int length, Device) {
  std::strncpy(name, "fake GPU", static_cast<std::size_t>(length));
  return Status::kSuccess;
}

Status cuDevicePrimaryCtxRetain(Handle* context, Device device) {
  static void* const primary = fake_cuda_make_context(device);
  *context = primary;
  return Status::kSuccess;
}

Status cuCtxSetCurrent(Handle context) {
  fake_cuda_set_current(context);
  return Status::kSuccess;
}

Status cuStreamCreate(Handle* stream, unsigned int) {
  const std::lock_guard lock(g_mutex);
  *stream = reinterpret_cast<Handle>(0x7000 + 0x10 * ++g_streams);
  return Status::kSuccess;
}

Status cuStreamBeginCapture_v2(Handle stream, StreamCaptureMode) {
  fake_cuda_capture(stream, 1);
  return Status::kSuccess;
}

Status cuStreamEndCapture(Handle stream, Handle* graph) {
  fake_cuda_capture(stream, 0);
  *graph = stream;
  return fake_cuda_is_capture_broken() == 0 ? Status::kSuccess : Status::kStreamCaptureUnsupported;
}

Status cuGraphDestroy(Handle) {
  return Status::kSuccess;
}

/// All is done that was launched; what is launched from here on has a later time.
Status cuCtxSynchronize() {
  while (!smon_rt::fake_cuda::streams().is_idle()) std::this_thread::yield();
  const std::lock_guard lock(g_mutex);
  fake_cuda_finish(g_now_ns);
  fake_cuda_set_time(g_now_ns += 1000);
  return Status::kSuccess;
}

}  // extern "C"
