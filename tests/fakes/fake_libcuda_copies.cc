#include "fakes/fake_libcuda_copies.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "fakes/fake_gpu.h"
#include "fakes/fake_libcuda.h"

namespace smon_rt::fake_cuda {
namespace {

using namespace cuda;

// Values of cuda.h that only a fake gives.
constexpr auto kInvalidValue = static_cast<Status>(1);
constexpr auto kOutOfMemory = static_cast<Status>(2);
constexpr auto kAlreadyRegistered = static_cast<Status>(712);
constexpr auto kNotRegistered = static_cast<Status>(713);
constexpr std::size_t kMostMemory = std::size_t{1} << 30;

FakeGpu& gpu() {
  static auto& made = *new FakeGpu;
  return made;
}

std::mutex g_mutex;
std::map<std::byte*, std::size_t> g_registered;  // by its end
std::uintptr_t g_streams = 0;
std::atomic<bool> g_has_work{false};

std::uint64_t number(Handle stream) {
  return reinterpret_cast<std::uintptr_t>(stream);
}

/// As the real driver: a copy within one registered range, or in none.
bool is_in_one_piece(std::byte* host, std::size_t bytes) {
  const std::lock_guard lock(g_mutex);
  const auto piece = g_registered.upper_bound(host);
  if (piece == g_registered.end()) return true;
  std::byte* begin = piece->first - piece->second;
  return host < begin ? host + bytes <= begin : host + bytes <= piece->first;
}

Status stream_create(Handle* stream, unsigned int) {
  if (const Status status = begin("cuStreamCreate"); status != Status::kSuccess) return status;
  const std::lock_guard lock(g_mutex);
  *stream = reinterpret_cast<Handle>(0x9000 + 0x10 * ++g_streams);
  g_has_work = true;
  if (!is_steered()) gpu().streams().set_automatic(true);
  return Status::kSuccess;
}

Status stream_destroy(Handle) {
  return begin("cuStreamDestroy");
}

Status mem_alloc(DevicePointer* address, std::size_t bytes) {
  if (const Status status = begin("cuMemAlloc"); status != Status::kSuccess) return status;
  if (bytes == 0) return kInvalidValue;
  if (bytes > kMostMemory) return kOutOfMemory;
  *address = gpu().allocate(bytes);
  return Status::kSuccess;
}

Status mem_free(DevicePointer address) {
  if (const Status status = begin("cuMemFree"); status != Status::kSuccess) return status;
  return gpu().free(address) ? Status::kSuccess : kInvalidValue;
}

Status mem_host_register(void* address, std::size_t bytes, unsigned int) {
  if (const Status status = begin("cuMemHostRegister"); status != Status::kSuccess) return status;
  auto* start = static_cast<std::byte*>(address);
  const std::lock_guard lock(g_mutex);
  const auto next = g_registered.upper_bound(start);
  if (next != g_registered.end() && next->first - next->second < start + bytes) return kAlreadyRegistered;
  g_registered[start + bytes] = bytes;
  return Status::kSuccess;
}

Status mem_host_unregister(void* address) {
  if (const Status status = begin("cuMemHostUnregister"); status != Status::kSuccess) return status;
  const std::lock_guard lock(g_mutex);
  const auto piece = g_registered.upper_bound(static_cast<std::byte*>(address));
  if (piece == g_registered.end() || piece->first - piece->second != address) return kNotRegistered;
  g_registered.erase(piece);
  return Status::kSuccess;
}

Status memcpy_dtoh_async(void* host, DevicePointer device, std::size_t bytes, Handle stream) {
  if (const Status status = begin("cuMemcpyDtoHAsync"); status != Status::kSuccess) return status;
  auto* to = static_cast<std::byte*>(host);
  if (gpu().find(device, bytes) == nullptr || !is_in_one_piece(to, bytes)) return kInvalidValue;
  gpu().copy_to_host(number(stream), to, device, bytes);
  return Status::kSuccess;
}

Status memcpy_dtod_async(DevicePointer to, DevicePointer from, std::size_t bytes, Handle stream) {
  if (const Status status = begin("cuMemcpyDtoDAsync"); status != Status::kSuccess) return status;
  if (gpu().find(to, bytes) == nullptr || gpu().find(from, bytes) == nullptr) return kInvalidValue;
  gpu().copy_on_device(number(stream), to, from, bytes);
  return Status::kSuccess;
}

}  // namespace

std::vector<Symbol> with_copies(std::vector<Symbol> symbols) {
  symbols.push_back(symbol("cuStreamCreate", 2000, &stream_create));
  symbols.push_back(symbol("cuStreamDestroy", 4000, &stream_destroy));
  symbols.push_back(symbol("cuMemAlloc", 3020, &mem_alloc));
  symbols.push_back(symbol("cuMemFree", 3020, &mem_free));
  symbols.push_back(symbol("cuMemHostRegister", 6050, &mem_host_register));
  symbols.push_back(symbol("cuMemHostUnregister", 4000, &mem_host_unregister));
  symbols.push_back(symbol("cuMemcpyDtoHAsync", 3020, &memcpy_dtoh_async));
  symbols.push_back(symbol("cuMemcpyDtoDAsync", 3020, &memcpy_dtod_async));
  return symbols;
}

FakeGpuStreams& streams() {
  return gpu().streams();
}

bool has_work() {
  return g_has_work;
}

FakeGpuStreams::Event record(Handle stream) {
  return gpu().streams().record(number(stream));
}

void wait(Handle stream, const FakeGpuStreams::Event& event) {
  gpu().streams().wait(number(stream), event);
}

void reset() {
  gpu().reset();
  g_has_work = false;
  const std::lock_guard lock(g_mutex);
  g_registered.clear();
}

}  // namespace smon_rt::fake_cuda

extern "C" {

using smon_rt::cuda::DevicePointer;
using smon_rt::cuda::Handle;
using smon_rt::cuda::Status;

// Under their real names, for programs on a GPU.

Status cuMemAlloc_v2(DevicePointer* address, std::size_t bytes) {
  // A program that nobody steers: everything is done as soon as it can be.
  smon_rt::fake_cuda::g_has_work = true;
  smon_rt::fake_cuda::streams().set_automatic(true);
  return smon_rt::fake_cuda::mem_alloc(address, bytes);
}

Status cuMemFree_v2(DevicePointer address) {
  return smon_rt::fake_cuda::mem_free(address);
}

Status cuMemsetD8Async(DevicePointer address, unsigned char value, std::size_t bytes, Handle stream) {
  if (smon_rt::fake_cuda::gpu().find(address, bytes) == nullptr) return smon_rt::fake_cuda::kInvalidValue;
  smon_rt::fake_cuda::gpu().fill(smon_rt::fake_cuda::number(stream), address, bytes, std::byte{value});
  return Status::kSuccess;
}

Status cuMemcpyHtoD_v2(DevicePointer address, const void* host, std::size_t bytes) {
  if (smon_rt::fake_cuda::gpu().find(address, bytes) == nullptr) return smon_rt::fake_cuda::kInvalidValue;
  smon_rt::fake_cuda::gpu().write(address, {static_cast<const std::byte*>(host), bytes});
  return Status::kSuccess;
}

Status cuMemcpyDtoHAsync_v2(void* host, DevicePointer device, std::size_t bytes, Handle stream) {
  return smon_rt::fake_cuda::memcpy_dtoh_async(host, device, bytes, stream);
}

/// In a thread beside the streams, as the real one's.
Status cuLaunchHostFunc(Handle stream, void (*function)(void*), void* argument) {
  fake_cuda_hold(stream);
  std::thread([=] {
    function(argument);
    fake_cuda_pass_stream_time(1000);
    fake_cuda_let_go(stream);
  }).detach();
  return Status::kSuccess;
}

Status cuStreamSynchronize(Handle stream) {
  while (!smon_rt::fake_cuda::streams().is_idle(smon_rt::fake_cuda::number(stream))) std::this_thread::yield();
  return Status::kSuccess;
}

void fake_cuda_run() {
  smon_rt::fake_cuda::streams().run();
}

void fake_cuda_hold(void* stream) {
  smon_rt::fake_cuda::streams().hold(smon_rt::fake_cuda::number(stream));
}

void fake_cuda_let_go(void* stream) {
  smon_rt::fake_cuda::streams().let_go(smon_rt::fake_cuda::number(stream));
}

void fake_cuda_pass_stream_time(std::int64_t duration_ns) {
  smon_rt::fake_cuda::streams().pass_time(duration_ns);
}

std::size_t fake_cuda_registered_bytes() {
  const std::lock_guard lock(smon_rt::fake_cuda::g_mutex);
  std::size_t bytes = 0;
  for (const auto& [end, length] : smon_rt::fake_cuda::g_registered) bytes += length;
  return bytes;
}

}  // extern "C"
