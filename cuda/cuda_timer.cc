#include "cuda/cuda_timer.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "cuda/driver_call.h"

namespace smon_rt::cuda {
namespace {

// A slot: generation << 24 | number of the pool << 16 | index. The generation is not 0, so neither is the slot.
static_assert(EventPool::kMaxEvents <= 1 << 16);

EventSlot make_slot(std::size_t pool, EventPool::Name name) {
  return static_cast<EventSlot>(std::uint64_t{name.generation} << 24 | pool << 16 | name.index);
}
std::size_t pool_number(EventSlot slot) {
  return static_cast<std::size_t>(slot >> 16 & 0xff);
}
EventPool::Name name_of(EventSlot slot) {
  // A slot of more bits than are used is none of ours; it gets the generation that none has.
  if (slot < 0 || slot >> 56 != 0) return {};
  return {static_cast<std::uint32_t>(slot & 0xffff), static_cast<std::uint32_t>(slot >> 24)};
}

/// As nvidia-smi writes it.
std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", uuid.bytes[i]);
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

}  // namespace

CudaTimer::CudaTimer(const DriverSymbols& driver, const CudaTimerOptions& options)
    : driver_(driver), options_(options), torch_stream_(options.torch_library) {}

CudaTimer::~CudaTimer() {
  for (auto& pool : pools_) delete pool.load();
}

std::size_t CudaTimer::index_of(GpuContext context) const noexcept {
  for (std::size_t i = 0; i < kMaxContexts; ++i) {
    // acquire: pairs with the release in adopt(): the events are there.
    const EventPool* pool = pools_[i].load(std::memory_order_acquire);
    if (pool == nullptr) break;
    if (to_number(pool->context()) == context) return i;
  }
  return kMaxContexts;
}

EventPool* CudaTimer::pool_of(EventSlot slot) const noexcept {
  if (pool_number(slot) >= kMaxContexts) return nullptr;
  EventPool* pool = pools_[pool_number(slot)].load(std::memory_order_acquire);
  return pool != nullptr && pool->is_in_use(name_of(slot)) ? pool : nullptr;
}

GpuContext CudaTimer::current_context() noexcept {
  Handle context = nullptr;
  // An error: the driver was not started, or this is a forked child.
  if (is_exiting() || driver_.cuCtxGetCurrent(&context) != Status::kSuccess) return 0;
  return to_number(context);
}

GpuStream CudaTimer::current_stream(GpuContext context) noexcept {
  const std::size_t index = index_of(context);
  if (index == kMaxContexts) return 0;
  return to_number(torch_stream_.of(pools_[index].load(std::memory_order_acquire)->device()));
}

CaptureState CudaTimer::capture_state(GpuStream stream) noexcept {
  if (is_exiting()) return CaptureState::kUnknown;
  StreamCaptureStatus capture = StreamCaptureStatus::kNone;
  switch (driver_.cuStreamIsCapturing(to_handle(stream), &capture)) {
    case Status::kSuccess:
      return capture == StreamCaptureStatus::kNone ? CaptureState::kNotCapturing : CaptureState::kCapturing;
    case Status::kStreamCaptureImplicit:  // the default stream, while another one that waits for it is captured
      return CaptureState::kCapturing;
    default:
      return CaptureState::kUnknown;
  }
}

EventSlot CudaTimer::record(GpuStream stream) noexcept {
  const std::size_t number = index_of(current_context());
  if (number == kMaxContexts || capture_state(stream) != CaptureState::kNotCapturing) return kNoEvent;
  EventPool& pool = *pools_[number].load(std::memory_order_acquire);
  const std::optional<std::uint32_t> index = pool.take();
  if (!index) return kNoEvent;
  if (driver_.cuEventRecord(pool.handle(*index), to_handle(stream)) != Status::kSuccess) {
    pool.put_back(*index);
    return kNoEvent;
  }
  return make_slot(number, pool.put_in_use(*index));
}

bool CudaTimer::retain(EventSlot slot) noexcept {
  EventPool* pool = pool_of(slot);
  return pool != nullptr && pool->retain(name_of(slot));
}

void CudaTimer::release(EventSlot slot) noexcept {
  if (EventPool* pool = pool_of(slot)) pool->release(name_of(slot));
}

Result<std::unique_ptr<EventPool>> CudaTimer::make_pool(Handle context) {
  const DriverCall call(driver_, context);
  Device device = 0;
  if (!call) return Error{"its context cannot be entered"};
  if (const Status status = driver_.cuCtxGetDevice(&device); status != Status::kSuccess) {
    return Error{"its context has no device: " + status_text(status)};
  }
  Uuid uuid{};
  const bool has_uuid = driver_.cuDeviceGetUuid(&uuid, device) == Status::kSuccess;
  auto pool = std::make_unique<EventPool>(context, device, options_.events_per_context,
                                          has_uuid ? uuid_text(uuid) : std::string());
  for (std::uint32_t i = 0; i < pool->size(); ++i) {
    const Status status = driver_.cuEventCreate(&pool->handle(i), kEventDefault);
    if (status == Status::kSuccess) continue;
    while (i-- > 0) driver_.cuEventDestroy(pool->handle(i));
    return Error{"its context gives no events: " + status_text(status)};
  }
  return pool;
}

Result<void> CudaTimer::adopt(GpuContext context) {
  if (context == 0) return Error{"there is no GPU context to record in"};
  torch_stream_.look();
  if (index_of(context) != kMaxContexts) return {};
  std::size_t free = 0;
  while (free < kMaxContexts && pools_[free].load(std::memory_order_relaxed) != nullptr) ++free;
  if (free == kMaxContexts) return Error{"more GPU contexts than the " + std::to_string(kMaxContexts) + " kept"};
  if (free == 0) watch_exit();
  auto pool = make_pool(to_handle(context));
  if (!pool) return Error{"no times of a GPU: " + pool.error().message};
  pools_[free].store(pool->release(), std::memory_order_release);  // pairs with the acquire in index_of()
  return {};
}

std::int32_t CudaTimer::device_of(GpuContext context) noexcept {
  const std::size_t index = index_of(context);
  return index == kMaxContexts ? -1 : pools_[index].load(std::memory_order_acquire)->device();
}

std::string CudaTimer::device_uuid(GpuContext context) {
  const std::size_t index = index_of(context);
  return index == kMaxContexts ? std::string() : pools_[index].load(std::memory_order_acquire)->device_uuid();
}

GpuContext CudaTimer::context_of(EventSlot slot) noexcept {
  const EventPool* pool = pool_of(slot);
  return pool == nullptr ? 0 : to_number(pool->context());
}

EventState CudaTimer::query(EventSlot slot) noexcept {
  EventPool* pool = pool_of(slot);
  if (pool == nullptr) return EventState::kFailed;
  const DriverCall call(driver_, pool->context());
  if (!call) return EventState::kFailed;
  switch (driver_.cuEventQuery(pool->handle(name_of(slot).index))) {
    case Status::kSuccess:
      return EventState::kReady;
    case Status::kNotReady:
      return EventState::kNotReady;
    default:
      return EventState::kFailed;
  }
}

Result<std::int64_t> CudaTimer::elapsed_ns(EventSlot from, EventSlot to) {
  EventPool* pool = pool_of(from);
  if (pool == nullptr || pool_of(to) == nullptr) return Error{"an event is not in use"};
  if (pool != pool_of(to)) return Error{"events of two contexts cannot be compared"};
  const DriverCall call(driver_, pool->context());
  if (!call) return Error{"the events' context cannot be entered"};
  float milliseconds = 0;
  const Status status =
      driver_.cuEventElapsedTime(&milliseconds, pool->handle(name_of(from).index), pool->handle(name_of(to).index));
  if (status != Status::kSuccess) return Error{"events cannot be compared: " + status_text(status)};
  return std::llround(static_cast<double>(milliseconds) * 1e6);
}

}  // namespace smon_rt::cuda
