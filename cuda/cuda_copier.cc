#include "cuda/cuda_copier.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/clock.h"
#include "cuda/driver_call.h"

namespace smon_rt::cuda {
namespace {

// Of the next range in the staging memory, as the driver aligns what it allocates.
constexpr std::size_t kStagingAlignment = 256;

Error failed(const char* what, Status status) {
  return Error{std::string(what) + ": " + status_text(status)};
}

Error not_entered() {
  return Error{"the GPU's context cannot be entered"};
}

std::size_t round_up(std::size_t bytes) {
  return (bytes + kStagingAlignment - 1) / kStagingAlignment * kStagingAlignment;
}

}  // namespace

CudaCopier::CudaCopier(const DriverSymbols& driver, const CudaCopierOptions& options)
    : driver_(driver), options_(options) {}

CudaCopier::~CudaCopier() {
  if (context_ == nullptr || !cancel(0)) return;
  const DriverCall call(driver_, context_);
  if (!call) return;
  for (const auto& [end, bytes] : pieces_) driver_.cuMemHostUnregister(const_cast<std::byte*>(end) - bytes);
  drop_all();
}

Result<void> CudaCopier::open(std::size_t staging_bytes) {
  if (context_ != nullptr) return Error{"the GPU copier is open already"};
  Handle context = nullptr;
  if (is_exiting() || driver_.cuCtxGetCurrent(&context) != Status::kSuccess || context == nullptr) {
    return Error{"no GPU context is current to this thread"};
  }
  const DriverCall call(driver_, context);
  if (!call) return not_entered();
  if (auto made = make_all(staging_bytes); !made) {
    drop_all();
    return made;
  }
  watch_exit();
  staging_bytes_ = staging_bytes;
  context_ = context;
  return {};
}

Result<void> CudaCopier::make_all(std::size_t staging_bytes) {
  if (const Status status = driver_.cuStreamCreate(&stream_, kStreamNonBlocking); status != Status::kSuccess) {
    return failed("the GPU gives no stream", status);
  }
  for (const auto& [event, flags] : {std::pair{&produced_, kEventDisableTiming},
                                     {&copied_, kEventDisableTiming},
                                     {&wait_began_, kEventDefault},
                                     {&wait_ended_, kEventDefault}}) {
    if (const Status status = driver_.cuEventCreate(event, flags); status != Status::kSuccess) {
      return failed("the GPU gives no event", status);
    }
  }
  if (staging_bytes == 0) return {};
  if (const Status status = driver_.cuMemAlloc(&staging_, staging_bytes); status != Status::kSuccess) {
    const std::string what = "the GPU has no " + std::to_string(staging_bytes) + " bytes to stage in";
    return failed(what.c_str(), status);
  }
  return {};
}

void CudaCopier::drop_all() noexcept {
  for (Handle* event : {&produced_, &copied_, &wait_began_, &wait_ended_}) {
    if (*event != nullptr) driver_.cuEventDestroy(std::exchange(*event, nullptr));
  }
  if (stream_ != nullptr) driver_.cuStreamDestroy(std::exchange(stream_, nullptr));
  if (staging_ != 0) driver_.cuMemFree(std::exchange(staging_, 0));
}

Result<void> CudaCopier::register_host(std::span<std::byte> range) {
  if (context_ == nullptr) return Error{"the GPU copier is not open"};
  const DriverCall call(driver_, context_);
  if (!call) return not_entered();
  for (std::size_t offset = 0; offset < range.size();) {
    const std::size_t bytes = std::min(range.size() - offset, options_.registered_piece_bytes);
    const Status status = driver_.cuMemHostRegister(range.data() + offset, bytes, kHostRegisterPortable);
    if (status != Status::kSuccess) {
      unregister_host(range.first(offset));
      return failed("host memory cannot be page-locked, copies are slower", status);
    }
    offset += bytes;
    const std::lock_guard lock(pieces_mutex_);
    pieces_[range.data() + offset] = bytes;
  }
  return {};
}

void CudaCopier::unregister_host(std::span<std::byte> range) noexcept {
  if (context_ == nullptr || range.empty()) return;
  const DriverCall call(driver_, context_);
  const std::lock_guard lock(pieces_mutex_);
  const auto first = pieces_.upper_bound(range.data());
  const auto last = pieces_.upper_bound(range.data() + range.size());
  for (auto piece = first; piece != last && call; ++piece) {
    driver_.cuMemHostUnregister(const_cast<std::byte*>(piece->first) - piece->second);
  }
  pieces_.erase(first, last);
}

/// What a copy from here on may have at most.
std::size_t CudaCopier::until_piece_ends(const std::byte* host) const noexcept {
  const std::lock_guard lock(pieces_mutex_);
  const auto piece = pieces_.upper_bound(host);
  if (piece == pieces_.end()) return options_.chunk_bytes;
  const std::byte* begin = piece->first - piece->second;
  // Before a piece: what is not page-locked must not reach into it either.
  return std::min(options_.chunk_bytes, static_cast<std::size_t>((host < begin ? begin : piece->first) - host));
}

/// A wait or a record would become a part of the graph, or break its capture.
Status CudaCopier::is_not_capturing(Handle stream) const noexcept {
  StreamCaptureStatus capture = StreamCaptureStatus::kNone;
  if (const Status status = driver_.cuStreamIsCapturing(stream, &capture); status != Status::kSuccess) return status;
  return capture == StreamCaptureStatus::kNone ? Status::kSuccess : Status::kStreamCaptureUnsupported;
}

Result<void> CudaCopier::begin(std::uint64_t producer_stream, std::span<const GpuCopyRange> volatile_ranges) {
  if (context_ == nullptr) return Error{"the GPU copier is not open"};
  const DriverCall call(driver_, context_);
  if (!call) return not_entered();
  const std::lock_guard lock(mutex_);
  if (state_ == State::kBegun || state_ == State::kEnqueuing) return Error{"a capture has begun already"};
  // Its copies read the staging memory.
  if (state_ == State::kEnqueued && progress() != Progress::kDone) {
    return Error{"copies of the last capture are still under way"};
  }
  const Handle stream = to_handle(producer_stream);
  if (const Status status = is_not_capturing(stream); status != Status::kSuccess) {
    return failed("the stream is captured into a graph, or cannot be asked", status);
  }
  // A stream is in order with itself.
  if (is_staging_ && stream != producer_ && driver_.cuEventQuery(produced_) != Status::kSuccess) {
    return Error{"another stream is still staging the last capture"};
  }
  state_ = State::kIdle;
  is_staging_ = true;
  producer_ = stream;
  if (auto staged = stage(stream, volatile_ranges); !staged) return staged;
  if (const Status status = driver_.cuEventRecord(produced_, stream); status != Status::kSuccess) {
    return failed("no event can be recorded in the stream", status);
  }
  is_cancelled_ = false;
  has_gated_ = false;
  state_ = State::kBegun;
  return {};
}

Result<void> CudaCopier::stage(Handle stream, std::span<const GpuCopyRange> ranges) {
  staged_.clear();
  std::size_t spare = staging_bytes_;
  for (const GpuCopyRange& range : ranges) {
    if (range.bytes > spare) {
      return Error{"more volatile memory than the " + std::to_string(staging_bytes_) + " bytes to stage in"};
    }
    spare -= range.bytes;
  }
  std::size_t offset = 0;
  for (const GpuCopyRange& range : ranges) {
    if (range.bytes == 0) continue;
    // Aligned as long as there is room for that: thousands of small ranges still fit where their bytes do.
    const std::size_t gap = round_up(offset) - offset;
    if (gap <= spare) {
      offset += gap;
      spare -= gap;
    }
    const DevicePointer staged = staging_ + offset;
    const Status status = driver_.cuMemcpyDtoDAsync(staged, range.device_address, range.bytes, stream);
    if (status != Status::kSuccess) return failed("a volatile range cannot be staged", status);
    staged_.push_back({staged, range.host, range.bytes});
    offset += range.bytes;
  }
  return {};
}

Status CudaCopier::copy(std::span<const GpuCopyRange> ranges) const noexcept {
  for (const GpuCopyRange& range : ranges) {
    for (std::size_t offset = 0; offset < range.bytes;) {
      if (is_cancelled_.load(std::memory_order_relaxed)) return Status::kSuccess;
      std::byte* host = range.host + offset;
      const std::size_t bytes = std::min(range.bytes - offset, until_piece_ends(host));
      const Status status = driver_.cuMemcpyDtoHAsync(host, range.device_address + offset, bytes, stream_);
      if (status != Status::kSuccess) return status;
      offset += bytes;
    }
  }
  return Status::kSuccess;
}

Result<void> CudaCopier::enqueue(std::span<const GpuCopyRange> stable_ranges) {
  if (context_ == nullptr) return Error{"the GPU copier is not open"};
  const DriverCall call(driver_, context_);
  if (!call) return not_entered();
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::kBegun) return Error{"no capture has begun, or it was cancelled"};
    state_ = State::kEnqueuing;
    is_staging_ = false;
  }
  Status status = driver_.cuStreamWaitEvent(stream_, produced_, 0);
  if (status == Status::kSuccess) status = copy(staged_);
  if (status == Status::kSuccess) status = copy(stable_ranges);
  // Also behind what was not enqueued whole: cancel() waits for what is.
  const Status recorded = driver_.cuEventRecord(copied_, stream_);
  const std::lock_guard lock(mutex_);
  state_ = State::kEnqueued;
  is_copied_recorded_ = recorded == Status::kSuccess;
  if (status == Status::kSuccess) status = recorded;
  if (status != Status::kSuccess) {
    is_cancelled_ = true;
    return failed("copies cannot be enqueued", status);
  }
  if (is_cancelled_) return Error{"the capture was cancelled"};
  return {};
}

Result<void> CudaCopier::gate(std::uint64_t stream_number) {
  if (context_ == nullptr) return Error{"the GPU copier is not open"};
  const DriverCall call(driver_, context_);
  if (!call) return not_entered();
  const std::lock_guard lock(mutex_);
  if (state_ != State::kEnqueued || is_cancelled_) {
    return Error{"no copies are enqueued: there is nothing to wait for"};
  }
  const Handle stream = to_handle(stream_number);
  Status status = is_not_capturing(stream);
  if (status == Status::kSuccess) status = driver_.cuEventRecord(wait_began_, stream);
  if (status == Status::kSuccess) status = driver_.cuStreamWaitEvent(stream, copied_, 0);
  if (status != Status::kSuccess) return failed("the stream cannot be told to wait", status);
  // The wait is what counts; without this event only its length is not known.
  has_gated_ = driver_.cuEventRecord(wait_ended_, stream) == Status::kSuccess;
  return {};
}

CudaCopier::Progress CudaCopier::progress() const noexcept {
  // What the event said of an earlier capture says nothing of this one.
  if (!is_copied_recorded_) return Progress::kFailed;
  switch (driver_.cuEventQuery(copied_)) {
    case Status::kSuccess:
      return Progress::kDone;
    case Status::kNotReady:
      return Progress::kRunning;
    default:
      return Progress::kFailed;
  }
}

Result<bool> CudaCopier::is_copied() {
  if (context_ == nullptr) return Error{"the GPU copier is not open"};
  const DriverCall call(driver_, context_);
  if (!call) return not_entered();
  const std::lock_guard lock(mutex_);
  if (is_cancelled_) return Error{"the capture was cancelled"};
  if (state_ != State::kEnqueued) return false;
  const Progress now = progress();
  if (now == Progress::kFailed) return Error{"the GPU does not say whether copies are done"};
  return now == Progress::kDone;
}

std::uint64_t CudaCopier::gpu_wait_ns() noexcept {
  if (context_ == nullptr) return 0;
  const DriverCall call(driver_, context_);
  const std::lock_guard lock(mutex_);
  float milliseconds = 0;
  if (!call || !has_gated_ || driver_.cuEventQuery(wait_ended_) != Status::kSuccess) return 0;
  if (driver_.cuEventElapsedTime(&milliseconds, wait_began_, wait_ended_) != Status::kSuccess) return 0;
  return milliseconds > 0 ? static_cast<std::uint64_t>(std::llround(static_cast<double>(milliseconds) * 1e6)) : 0;
}

bool CudaCopier::cancel(std::int64_t deadline_ns) noexcept {
  is_cancelled_ = true;
  const timespec nap{0, 50'000};
  for (;;) {
    {
      const DriverCall call(driver_, context_);
      const std::lock_guard lock(mutex_);
      if (state_ == State::kBegun) state_ = State::kIdle;  // what comes to enqueue later finds nothing
      if (state_ == State::kEnqueued && call && progress() == Progress::kDone) state_ = State::kIdle;
      if (state_ == State::kIdle) return true;
    }
    if (monotonic_ns() >= deadline_ns) return false;
    ::nanosleep(&nap, nullptr);
  }
}

}  // namespace smon_rt::cuda
