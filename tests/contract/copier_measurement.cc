#include "contract/copier_measurement.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "contract/own_gpu.h"
#include "cuda/cuda_copier.h"
#include "cuda/driver_symbols.h"

namespace smon_rt::contract {
namespace {

constexpr int kRounds = 7;
constexpr int kTornRounds = 20;
constexpr std::size_t kStateTensors = 64;
constexpr std::size_t kManyTensors = 3000;
constexpr std::size_t kVolatileTensors = 8;
constexpr std::size_t kVolatileBytes = 4096;
constexpr std::int64_t kDeadline_ns = 20'000'000'000;
// Of work in the job's stream per byte that is copied meanwhile: memory of a GPU is some fifty times as fast as its way
// to the host, so that both take about as long.
constexpr int kFillsPerRound = 40;

template <typename T>
void demand(const Result<T>& result) {
  if (!result) throw std::runtime_error(result.error().message);
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

double seconds_since(std::int64_t began_ns) {
  return static_cast<double>(monotonic_ns() - began_ns) * 1e-9;
}

class Measurement {
 public:
  explicit Measurement(std::size_t bytes)
      : bytes_(bytes), gpu_(checked(OwnGpu::open())), copier_(checked(cuda::load_driver())), slot_(bytes) {
    gpu_.enter_context();
    stream_ = gpu_.make_stream();
    plain_stream_ = gpu_.make_stream();
    state_ = gpu_.allocate(bytes);
    volatile_ = gpu_.allocate(kVolatileTensors * kVolatileBytes);
    demand(copier_.open(kVolatileTensors * kVolatileBytes));
    const std::int64_t began_ns = monotonic_ns();
    demand(copier_.register_host(slot_));
    add("register_s", seconds_since(began_ns));
    volatile_slot_.resize(kVolatileTensors * kVolatileBytes);
    demand(copier_.register_host(volatile_slot_));
  }
  ~Measurement() {
    copier_.cancel(monotonic_ns() + kDeadline_ns);
    copier_.unregister_host(volatile_slot_);
    copier_.unregister_host(slot_);
  }
  Measurement(const Measurement&) = delete;
  Measurement& operator=(const Measurement&) = delete;

  std::string run() {
    measure_speed();
    measure_overlap();
    add("torn_count", count_torn(true));
    add("torn_without_gate_count", count_torn(false));
    add("torn_rounds", kTornRounds);
    return "{" + text_ + "}";
  }

 private:
  template <typename T>
  static T checked(Result<T> result) {
    demand(result);
    return std::move(*result);
  }
  void add(const char* name, double value) {
    char number[64];
    std::snprintf(number, sizeof(number), "\"%s\": %.9g", name, value);
    text_ += (text_.empty() ? "" : ", ") + std::string(number);
  }
  std::uint64_t stream() const { return reinterpret_cast<std::uintptr_t>(stream_); }

  std::vector<GpuCopyRange> state_ranges(std::size_t count) {
    std::vector<GpuCopyRange> ranges;
    const std::size_t each = bytes_ / count;
    for (std::size_t i = 0; i < count; ++i) ranges.push_back({state_ + i * each, slot_.data() + i * each, each});
    return ranges;
  }
  std::vector<GpuCopyRange> volatile_ranges() {
    std::vector<GpuCopyRange> ranges;
    for (std::size_t at = 0; at < volatile_slot_.size(); at += kVolatileBytes) {
      ranges.push_back({volatile_ + at, volatile_slot_.data() + at, kVolatileBytes});
    }
    return ranges;
  }
  void wait_until_copied() {
    const std::int64_t deadline_ns = monotonic_ns() + kDeadline_ns;
    for (;;) {
      const auto copied = copier_.is_copied();
      demand(copied);
      if (*copied) return;
      if (monotonic_ns() > deadline_ns) throw std::runtime_error("copies are not done after 20 s");
      std::this_thread::yield();
    }
  }

  double plain_copy_s() {
    gpu_.synchronize();
    const std::int64_t began_ns = monotonic_ns();
    gpu_.copy_to_host(plain_stream_, slot_.data(), state_, bytes_);
    gpu_.synchronize(plain_stream_);
    return seconds_since(began_ns);
  }

  struct Times {
    double begin_s = 0, enqueue_s = 0, gate_s = 0, copied_s = 0;
  };
  Times capture(const std::vector<GpuCopyRange>& ranges) {
    gpu_.synchronize();
    Times times;
    const std::int64_t began_ns = monotonic_ns();
    demand(copier_.begin(stream(), volatile_ranges()));
    times.begin_s = seconds_since(began_ns);
    const std::int64_t enqueue_ns = monotonic_ns();
    demand(copier_.enqueue(ranges));
    times.enqueue_s = seconds_since(enqueue_ns);
    const std::int64_t gate_ns = monotonic_ns();
    demand(copier_.gate(stream()));
    times.gate_s = seconds_since(gate_ns);
    wait_until_copied();
    times.copied_s = seconds_since(began_ns);
    return times;
  }

  /// Plain copies and captures by turns.
  void measure_speed() {
    std::vector<double> plain, copied, begin, gate, many, many_enqueue;
    const auto ranges = state_ranges(kStateTensors);
    const auto many_ranges = state_ranges(kManyTensors);
    for (int round = 0; round < kRounds; ++round) {
      plain.push_back(plain_copy_s());
      const Times times = capture(ranges);
      copied.push_back(times.copied_s);
      begin.push_back(times.begin_s);
      gate.push_back(times.gate_s);
      const Times many_times = capture(many_ranges);
      many.push_back(many_times.copied_s);
      many_enqueue.push_back(many_times.enqueue_s);
    }
    const auto bytes = static_cast<double>(bytes_);
    add("plain_copy_bytes_per_s", bytes / median(plain));
    add("copier_bytes_per_s", bytes / median(copied));
    add("copier_3000_tensors_bytes_per_s", bytes / median(many));
    add("enqueue_3000_tensors_s", median(many_enqueue));
    add("begin_us", median(begin) * 1e6);
    add("gate_us", median(gate) * 1e6);
  }

  double work_s(bool copies) {
    gpu_.synchronize();
    if (copies) {
      demand(copier_.begin(stream(), {}));
      demand(copier_.enqueue(state_ranges(kStateTensors)));
    }
    const std::int64_t began_ns = monotonic_ns();
    for (int i = 0; i < kFillsPerRound; ++i) gpu_.fill(stream_, work_, bytes_, std::byte{1});
    gpu_.synchronize(stream_);
    const double took_s = seconds_since(began_ns);
    if (copies) wait_until_copied();
    return took_s;
  }

  void measure_overlap() {
    work_ = gpu_.allocate(bytes_);
    std::vector<double> alone, beside;
    for (int round = 0; round < kRounds; ++round) {
      alone.push_back(work_s(false));
      beside.push_back(work_s(true));
    }
    gpu_.free(work_);
    add("work_alone_s", median(alone));
    add("work_beside_copies_s", median(beside));
  }

  /// Steps whose "optimizer" overwrites the state behind the gate; without one it comes right after the copies' begin.
  int count_torn(bool has_gate) {
    int torn_count = 0;
    for (int round = 1; round <= kTornRounds; ++round) {
      const auto value = static_cast<std::byte>(round);
      gpu_.fill(stream_, state_, bytes_, value);
      demand(copier_.begin(stream(), {}));
      std::thread([&] { has_enqueued_ = copier_.enqueue(state_ranges(kStateTensors)).has_value(); }).join();
      if (!has_enqueued_) throw std::runtime_error("copies cannot be enqueued by another thread");
      if (has_gate) demand(copier_.gate(stream()));
      gpu_.fill(stream_, state_, bytes_, std::byte{0xff});
      wait_until_copied();
      torn_count += std::ranges::any_of(slot_, [value](std::byte one) { return one != value; }) ? 1 : 0;
      gpu_.synchronize();
    }
    return torn_count;
  }

  const std::size_t bytes_;
  OwnGpu gpu_;
  cuda::CudaCopier copier_;
  std::vector<std::byte> slot_, volatile_slot_;
  cuda::Handle stream_ = nullptr, plain_stream_ = nullptr;
  cuda::DevicePointer state_ = 0, volatile_ = 0, work_ = 0;
  bool has_enqueued_ = false;
  std::string text_;
};

}  // namespace

std::string measure_copies(std::size_t bytes) {
  return Measurement(bytes).run();
}

}  // namespace smon_rt::contract
