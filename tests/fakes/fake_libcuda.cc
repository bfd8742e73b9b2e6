// A CUDA driver without a GPU: the functions that are used, found as the real one's are, by cuGetProcAddress. Time
// moves when the test says. The signatures are those of cuda/driver_types.h, which a build with a toolkit holds against
// its headers.

#include "fakes/fake_libcuda.h"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/driver_types.h"
#include "fakes/fake_gpu_queue.h"
#include "fakes/fake_libcuda_copies.h"

namespace {

using namespace smon_rt::cuda;

struct Context {
  int device = 0;
  bool is_lost = false;
};

struct Event {
  Context* context = nullptr;
  bool is_recorded = false;
  std::int64_t time_ns = 0;
  // Of a process on its own.
  smon_rt::FakeGpuQueue* queue = nullptr;
  smon_rt::FakeGpuQueue::Moment moment;
  // Where streams do what they are told to (fake_libcuda_copies.h).
  smon_rt::FakeGpuStreams::Event recorded;
};

struct Driver {
  std::mutex mutex;
  int version = 13000;
  std::string missing;
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<Event>> events;
  std::map<std::string, int> failures;
  std::map<std::string, int> calls;
  std::set<void*> capturing;
  std::map<void*, smon_rt::FakeGpuQueue> queues;
  bool is_capture_broken = false;
  std::int64_t now_ns = 0;
  std::int64_t finished_ns = -1;
  void* torch_stream = nullptr;
  int torch_error = 0;
};

Driver& driver() {
  static auto& made = *new Driver;
  return made;
}

struct Thread {
  std::vector<Context*> contexts;
  StreamCaptureMode mode = StreamCaptureMode::kGlobal;
};

// A process that nobody steers: its threads have a context, device time is the host's, or runs beside it, and nothing
// takes any but what the process launches. Whoever calls the driver after its own exit handler has run is found out.
bool is_on_its_own() {
  static const bool is_set = std::getenv("FAKE_CUDA_CONTEXT") != nullptr;
  return is_set;
}

constinit std::atomic<bool> g_is_down{false};

Context* first_context() {
  static Context* const made = [] {
    if (!is_on_its_own()) return static_cast<Context*>(nullptr);
    std::atexit([] { g_is_down = true; });
    return static_cast<Context*>(fake_cuda_make_context(0));
  }();
  return made;
}

std::int64_t host_now_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

double number_from_environment(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::strtod(text, nullptr) : 0;
}

/// Of a process on its own.
std::int64_t device_ns_at(std::int64_t host_ns) {
  static const std::int64_t first_ns = host_now_ns();
  static const double rate = 1 + number_from_environment("FAKE_CUDA_DRIFT_PPM") * 1e-6;
  static const auto offset_ns = static_cast<std::int64_t>(number_from_environment("FAKE_CUDA_OFFSET_NS"));
  return first_ns + offset_ns + std::llround(rate * static_cast<double>(host_ns - first_ns));
}

Thread& thread() {
  thread_local Thread made;
  return made;
}

Context* current() {
  return thread().contexts.empty() ? first_context() : thread().contexts.back();
}

Status begin_call(const char* symbol) {
  if (g_is_down) std::abort();
  const std::lock_guard lock(driver().mutex);
  ++driver().calls[symbol];
  const auto failure = driver().failures.find(symbol);
  return failure == driver().failures.end() ? Status::kSuccess : static_cast<Status>(failure->second);
}

#define FAKE_CALL(symbol) \
  if (const Status failure = begin_call(symbol); failure != Status::kSuccess) return failure

/// A thread that asks for events while another one captures breaks the capture, unless it is relaxed.
Status check_capture() {
  if (driver().capturing.empty() || thread().mode == StreamCaptureMode::kRelaxed) return Status::kSuccess;
  driver().is_capture_broken = true;
  return Status::kStreamCaptureUnsupported;
}

Event* as_event(Handle handle) {
  const auto& events = driver().events;
  const auto found = std::ranges::find(events, handle, [](const auto& event) -> Handle { return event.get(); });
  return found == events.end() ? nullptr : found->get();
}

/// The device's number, and which form of the function says so.
Status device_uuid(Uuid* uuid, Device device, unsigned char form) {
  *uuid = {};
  uuid->bytes[0] = form;
  uuid->bytes[15] = static_cast<unsigned char>(device);
  return Status::kSuccess;
}

Status device_get_uuid_9020(Uuid* uuid, Device device) {
  FAKE_CALL("cuDeviceGetUuid");
  return device_uuid(uuid, device, 0x92);
}

Status device_get_uuid_11040(Uuid* uuid, Device device) {
  FAKE_CALL("cuDeviceGetUuid");
  return device_uuid(uuid, device, 0xb4);
}

Status driver_get_version(int* version) {
  FAKE_CALL("cuDriverGetVersion");
  *version = driver().version;
  return Status::kSuccess;
}

Status ctx_get_current(Handle* context) {
  FAKE_CALL("cuCtxGetCurrent");
  *context = current();
  return Status::kSuccess;
}

Status ctx_get_device(Device* device) {
  FAKE_CALL("cuCtxGetDevice");
  if (current() == nullptr) return Status::kInvalidContext;
  *device = current()->device;
  return Status::kSuccess;
}

Status ctx_push_current(Handle context) {
  FAKE_CALL("cuCtxPushCurrent");
  if (context == nullptr || static_cast<Context*>(context)->is_lost) return Status::kInvalidContext;
  thread().contexts.push_back(static_cast<Context*>(context));
  return Status::kSuccess;
}

Status ctx_pop_current(Handle* context) {
  FAKE_CALL("cuCtxPopCurrent");
  if (thread().contexts.empty()) return Status::kInvalidContext;
  *context = thread().contexts.back();
  thread().contexts.pop_back();
  return Status::kSuccess;
}

Status stream_is_capturing(Handle stream, StreamCaptureStatus* status) {
  FAKE_CALL("cuStreamIsCapturing");
  const std::lock_guard lock(driver().mutex);
  const bool is_capturing = driver().capturing.contains(stream);
  if (stream == nullptr && !is_capturing && !driver().capturing.empty()) return Status::kStreamCaptureImplicit;
  *status = is_capturing ? StreamCaptureStatus::kActive : StreamCaptureStatus::kNone;
  return Status::kSuccess;
}

Status thread_exchange_stream_capture_mode(StreamCaptureMode* mode) {
  FAKE_CALL("cuThreadExchangeStreamCaptureMode");
  std::swap(thread().mode, *mode);
  return Status::kSuccess;
}

Status event_create(Handle* event, unsigned int) {
  FAKE_CALL("cuEventCreate");
  const std::lock_guard lock(driver().mutex);
  if (current() == nullptr || current()->is_lost) return Status::kInvalidContext;
  driver().events.push_back(std::make_unique<Event>());
  driver().events.back()->context = current();
  *event = driver().events.back().get();
  return Status::kSuccess;
}

Status event_destroy(Handle event) {
  FAKE_CALL("cuEventDestroy");
  const std::lock_guard lock(driver().mutex);
  if (Event* made = as_event(event); made != nullptr && made->queue != nullptr) made->queue->forget(&made->moment);
  return std::erase_if(driver().events, [&](const auto& made) { return made.get() == event; }) == 1
             ? Status::kSuccess
             : Status::kInvalidHandle;
}

Status event_record(Handle handle, Handle stream) {
  FAKE_CALL("cuEventRecord");
  const std::lock_guard lock(driver().mutex);
  Event* event = as_event(handle);
  if (event == nullptr || event->context != current() || event->context->is_lost) return Status::kInvalidHandle;
  event->is_recorded = true;
  event->time_ns = driver().now_ns;
  if (!is_on_its_own()) {
    event->recorded = smon_rt::fake_cuda::has_work() ? smon_rt::fake_cuda::record(stream) : nullptr;
    return Status::kSuccess;
  }
  const std::int64_t now_ns = host_now_ns();
  if (event->queue != nullptr) event->queue->forget(&event->moment);
  event->queue = &driver().queues[stream];
  event->queue->record(now_ns, &event->moment);
  event->queue->advance(now_ns);
  return Status::kSuccess;
}

bool has_happened(Event& event) {
  if (event.recorded != nullptr) {
    event.time_ns = smon_rt::fake_cuda::streams().time_ns(event.recorded);
    return smon_rt::fake_cuda::streams().has_come(event.recorded);
  }
  if (event.queue == nullptr) return event.time_ns <= driver().finished_ns;
  const std::int64_t now_ns = host_now_ns();
  event.queue->advance(now_ns);
  if (!event.moment.is_known || event.moment.host_ns > now_ns) return false;
  event.time_ns = device_ns_at(event.moment.host_ns);
  return true;
}

Status event_query(Handle handle) {
  FAKE_CALL("cuEventQuery");
  const std::lock_guard lock(driver().mutex);
  if (const Status status = check_capture(); status != Status::kSuccess) return status;
  Event* event = as_event(handle);
  if (event == nullptr || event->context->is_lost) return Status::kInvalidHandle;
  return !event->is_recorded || has_happened(*event) ? Status::kSuccess : Status::kNotReady;
}

Status elapsed(float* milliseconds, Handle start, Handle end) {
  if (event_query(start) != Status::kSuccess || event_query(end) != Status::kSuccess) return Status::kNotReady;
  const std::lock_guard lock(driver().mutex);
  if (as_event(start)->context != as_event(end)->context) return Status::kInvalidHandle;
  *milliseconds = static_cast<float>(static_cast<double>(as_event(end)->time_ns - as_event(start)->time_ns) / 1e6);
  return Status::kSuccess;
}

Status event_elapsed_time_2000(float* milliseconds, Handle start, Handle end) {
  FAKE_CALL("cuEventElapsedTime of 2000");
  return elapsed(milliseconds, start, end);
}

Status event_elapsed_time_12080(float* milliseconds, Handle start, Handle end) {
  FAKE_CALL("cuEventElapsedTime of 12080");
  return elapsed(milliseconds, start, end);
}

Status stream_wait_event(Handle stream, Handle handle, unsigned int) {
  FAKE_CALL("cuStreamWaitEvent");
  const std::lock_guard lock(driver().mutex);
  const Event* event = as_event(handle);
  if (event == nullptr || event->context->is_lost) return Status::kInvalidHandle;
  smon_rt::fake_cuda::wait(stream, event->recorded);
  return Status::kSuccess;
}

using smon_rt::fake_cuda::Symbol;
using smon_rt::fake_cuda::symbol;

/// The newest form of a function that is not newer than asked for. Versions that the driver does not know are refused.
Status find(const char* name, void** function, int version) {
  static const std::vector<Symbol> symbols = smon_rt::fake_cuda::with_copies({
      symbol("cuStreamWaitEvent", 3020, &stream_wait_event),
      symbol("cuDriverGetVersion", 2020, &driver_get_version),
      symbol("cuCtxGetCurrent", 4000, &ctx_get_current),
      symbol("cuCtxGetDevice", 2000, &ctx_get_device),
      symbol("cuCtxPushCurrent", 4000, &ctx_push_current),
      symbol("cuCtxPopCurrent", 4000, &ctx_pop_current),
      symbol("cuStreamIsCapturing", 10000, &stream_is_capturing),
      symbol("cuThreadExchangeStreamCaptureMode", 10010, &thread_exchange_stream_capture_mode),
      symbol("cuEventCreate", 2000, &event_create),
      symbol("cuEventDestroy", 4000, &event_destroy),
      symbol("cuEventRecord", 2000, &event_record),
      symbol("cuEventQuery", 2000, &event_query),
      symbol("cuEventElapsedTime", 2000, &event_elapsed_time_2000),
      symbol("cuEventElapsedTime", 12080, &event_elapsed_time_12080),
      symbol("cuDeviceGetUuid", 9020, &device_get_uuid_9020),
      symbol("cuDeviceGetUuid", 11040, &device_get_uuid_11040),
  });
  *function = nullptr;
  if (version > driver().version || driver().missing == name) return Status::kNotFound;
  for (const Symbol& known : symbols) {
    if (std::strcmp(known.name, name) == 0 && known.version <= version) *function = known.function;
  }
  return *function == nullptr ? Status::kNotFound : Status::kSuccess;
}

}  // namespace

smon_rt::cuda::Status smon_rt::fake_cuda::begin(const char* symbol) {
  FAKE_CALL(symbol);
  return current() == nullptr || current()->is_lost ? Status::kInvalidContext : Status::kSuccess;
}

bool smon_rt::fake_cuda::is_steered() {
  return !is_on_its_own();
}

extern "C" {

Status cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t, int* symbol_status) {
  const Status status = find(name, function, version);
  *symbol_status = status == Status::kSuccess ? 0 : 1;
  return status;
}

void fake_cuda_reset() {
  Driver& fake = driver();
  const std::lock_guard lock(fake.mutex);
  thread() = {};
  fake.version = 13000;
  fake.missing.clear();
  fake.events.clear();
  fake.failures.clear();
  fake.calls.clear();
  fake.capturing.clear();
  fake.queues.clear();
  fake.is_capture_broken = false;
  fake.now_ns = 0;
  fake.finished_ns = -1;
  fake.torch_stream = nullptr;
  fake.torch_error = 0;
  smon_rt::fake_cuda::reset();
}

void fake_cuda_set_version(int version) {
  driver().version = version;
}

void fake_cuda_set_missing(const char* name) {
  driver().missing = name != nullptr ? name : "";
}

void* fake_cuda_make_context(int device) {
  const std::lock_guard lock(driver().mutex);
  driver().contexts.push_back(std::make_unique<Context>(Context{device}));
  return driver().contexts.back().get();
}

void fake_cuda_set_current(void* context) {
  thread().contexts.clear();
  if (context != nullptr) thread().contexts.push_back(static_cast<Context*>(context));
}

void fake_cuda_lose_context(void* context) {
  static_cast<Context*>(context)->is_lost = true;
}

void fake_cuda_fail(const char* name, int status) {
  const std::lock_guard lock(driver().mutex);
  driver().failures.erase(name);
  if (status != 0) driver().failures.emplace(name, status);
}

int fake_cuda_calls(const char* name) {
  const std::lock_guard lock(driver().mutex);
  return driver().calls[name];
}

void fake_cuda_set_time(std::int64_t time_ns) {
  const std::lock_guard lock(driver().mutex);
  driver().now_ns = time_ns;
}

void fake_cuda_finish(std::int64_t time_ns) {
  const std::lock_guard lock(driver().mutex);
  driver().finished_ns = time_ns;
}

void fake_cuda_launch(void* stream, std::int64_t duration_ns) {
  const std::lock_guard lock(driver().mutex);
  driver().queues[stream].launch(host_now_ns(), duration_ns);
}

void fake_cuda_signal(void* stream, std::int64_t* slot, std::int64_t delay_ns) {
  const std::lock_guard lock(driver().mutex);
  driver().queues[stream].signal(host_now_ns(), slot, delay_ns);
  driver().queues[stream].advance(host_now_ns());
}

void fake_cuda_wait(void* stream, std::int64_t* slot) {
  const std::lock_guard lock(driver().mutex);
  driver().queues[stream].wait(host_now_ns(), slot);
}

void fake_cuda_synchronize(void* stream, const std::int64_t* slot) {
  const timespec nap{0, 200'000};
  for (bool is_done = false; !is_done;) {
    {
      const std::lock_guard lock(driver().mutex);
      smon_rt::FakeGpuQueue& queue = driver().queues[stream];
      const std::int64_t now_ns = host_now_ns();
      queue.advance(now_ns);
      is_done = slot == nullptr ? queue.is_done(now_ns) : *slot != 0 && *slot <= now_ns;
    }
    if (!is_done) ::nanosleep(&nap, nullptr);
  }
}

void fake_cuda_capture(void* stream, int is_capturing) {
  const std::lock_guard lock(driver().mutex);
  driver().capturing.erase(stream);
  if (is_capturing != 0) driver().capturing.insert(stream);
}

int fake_cuda_is_capture_broken() {
  const std::lock_guard lock(driver().mutex);
  return driver().is_capture_broken ? 1 : 0;
}

void fake_torch_set_stream(void* stream, int error) {
  driver().torch_stream = stream;
  driver().torch_error = error;
}

std::int32_t aoti_torch_get_current_cuda_stream(std::int32_t, void** stream) {
  *stream = driver().torch_stream;
  return driver().torch_error;
}

}  // extern "C"
