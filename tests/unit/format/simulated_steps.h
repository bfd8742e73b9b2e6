#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "format/span.h"

namespace smon_rt::test {

/// What a rank in the middle of a pipeline records on its main thread: 1F1B with sends and receives, bucketed gradient
/// reduction, optimizer, parameters gathered again, a metric and the step itself. Times jitter by nanoseconds; the rest
/// repeats as training does.
class SimulatedSteps {
 public:
  explicit SimulatedSteps(bool has_gpu, std::uint64_t seed = 1) : has_gpu_(has_gpu), random_(seed) {}

  std::vector<Span> make(std::uint32_t step_count, std::uint32_t first_step = 1000) {
    for (std::uint32_t step = first_step; step < first_step + step_count; ++step) add_step(step);
    return spans_;
  }

 private:
  static constexpr int kMicrobatches = 16;
  static constexpr int kWarmup = 2;
  static constexpr int kBuckets = 6;
  static constexpr std::uint16_t kPipeline = 1;
  static constexpr std::uint16_t kData = 2;
  static constexpr std::uint16_t kTrack = 1;
  static constexpr std::int32_t kRank = 9;
  static constexpr std::int64_t kMillisecond = 1'000'000;

  std::int64_t jittered(std::int64_t mean) {
    return mean + static_cast<std::int64_t>(static_cast<double>(mean) * 0.08 *
                                            std::normal_distribution<double>(0, 1)(random_));
  }

  Span next(Kind kind, std::int64_t host_ns, std::int64_t device_ns) {
    Span span;
    span.kind = kind;
    span.step = step_;
    span.track_id = kTrack;
    span.op_index = op_index_[static_cast<std::size_t>(kind)]++;
    now_ += 500 + static_cast<std::int64_t>(random_() % 20'000);
    span.start = now_;
    if (has_gpu_ && device_ns > 0) {
      now_ += jittered(device_ns / 8);  // launching takes less than running
      span.time_source = is_communication(kind) ? TimeSource::kWaitEvent : TimeSource::kGpuEvent;
      // A wait's event has no start of its own: it is where the stream was when the transfer was issued.
      const std::int64_t gap = is_communication(kind) ? 0 : 400 + static_cast<std::int64_t>(random_() % 3'000);
      span.device_start = std::max(device_now_ + gap, span.start);
      span.device_end = device_now_ = span.device_start + jittered(device_ns);
    } else {
      now_ += jittered(host_ns);
    }
    span.end = now_;
    return span;
  }

  void add_host(Kind kind, std::int64_t ns) { spans_.push_back(next(kind, ns, 0)); }

  void add_compute(Kind kind, int microbatch, std::int64_t ns) {
    Span span = next(kind, ns, ns);
    span.microbatch = static_cast<std::int16_t>(microbatch);
    span.chunk = 0;
    spans_.push_back(span);
  }

  void add_transfer(Kind kind, int microbatch, std::int32_t peer) {
    Span span = next(kind, 3 * kMillisecond, kMillisecond);
    span.microbatch = static_cast<std::int16_t>(microbatch);
    span.chunk = 0;
    span.name_or_comm_id = kPipeline;
    span.comm_seq = ++sequences_[static_cast<std::size_t>(kind)];
    span.peer = peer;
    span.set_payload_bytes(2 * 8192 * 5120);
    spans_.push_back(span);
  }

  void add_collective(Kind kind, std::uint64_t bytes) {
    Span span = next(kind, 8 * kMillisecond, 6 * kMillisecond);
    span.name_or_comm_id = kData;
    span.comm_seq = ++sequences_[static_cast<std::size_t>(kind)];
    span.set_payload_bytes(bytes);
    spans_.push_back(span);
  }

  void add_forward(int microbatch) {
    add_transfer(Kind::kForwardRecv, microbatch, kRank - 1);
    add_compute(Kind::kForwardCompute, microbatch, 21 * kMillisecond);
    add_transfer(Kind::kForwardSend, microbatch, kRank + 1);
  }

  void add_backward(int microbatch) {
    add_transfer(Kind::kBackwardRecv, microbatch, kRank + 1);
    add_compute(Kind::kBackwardCompute, microbatch, 43 * kMillisecond);
    add_transfer(Kind::kBackwardSend, microbatch, kRank - 1);
  }

  void add_step(std::uint32_t step) {
    step_ = step;
    op_index_.assign(kKindCount, 0);
    const std::int64_t begin = now_ + 900;
    add_host(Kind::kDataLoading, 2 * kMillisecond);
    for (int i = 0; i < kWarmup; ++i) add_forward(i);
    for (int i = kWarmup; i < kMicrobatches; ++i) {
      add_forward(i);
      add_backward(i - kWarmup);
    }
    for (int i = kMicrobatches - kWarmup; i < kMicrobatches; ++i) add_backward(i);
    for (int i = 0; i < kBuckets; ++i) add_collective(Kind::kGradsReduceScatter, 160'000'000 + 1'310'720 * i);
    add_collective(Kind::kLayernormGradsAllReduce, 245'760);
    add_host(Kind::kOptimizerClipMainGrad, 3 * kMillisecond);
    add_host(Kind::kOptimizer, 12 * kMillisecond);
    for (int i = 0; i < kBuckets; ++i) add_collective(Kind::kParamsAllGather, 80'000'000 + 655'360 * i);
    Span loss = next(Kind::kMetric, 0, 0);
    loss.end = loss.start;
    loss.name_or_comm_id = 1;
    loss.set_metric_value(2.5 + 1e-9 * static_cast<double>(random_() % 1'000'000));
    spans_.push_back(loss);
    Span whole = next(Kind::kStep, 1'000, 0);
    whole.start = begin;
    spans_.push_back(whole);
  }

  bool has_gpu_;
  std::mt19937_64 random_;
  std::vector<Span> spans_;
  std::vector<std::uint16_t> op_index_;
  std::vector<std::uint32_t> sequences_ = std::vector<std::uint32_t>(kKindCount, 4'000);
  std::uint32_t step_ = 0;
  std::int64_t now_ = 1'234'567'890'123'456;
  std::int64_t device_now_ = 0;
};

}  // namespace smon_rt::test
