// One pair of begin and end in each state of the recorder. run.py counts the instructions of the same program with
// callgrind; beside the mean the median and the 99th percentile of batches of 64 pairs are given.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "record/recorder.h"

namespace smon_rt {
namespace {

constexpr int kBatchPairs = 64;

/// A recorder that samples every step (or none), and the reading end of its rings.
class Bench {
 public:
  explicit Bench(double sample_ratio) {
    RecorderOptions options;
    options.arena.run_id = "bench-" + std::to_string(::getpid());
    options.sampling = {.sample_ratio = sample_ratio, .warmup_steps = 0, .always_steps = 0};
    auto made = Recorder::create(options);
    if (!made) std::abort();
    recorder_ = std::move(*made);
    members_ = {0, 1, 2, 3};
    comm_id_ = recorder_->register_communicator("dp", "dp", members_);
    recorder_->resume();
    recorder_->step_begin(0);
    recorder_->end(recorder_->begin(Kind::kUser));  // this thread has its ring from here on
  }

  Recorder& recorder() { return *recorder_; }
  std::uint16_t comm_id() const { return comm_id_; }

  /// What a drain thread does in the end, without the copy: there is room again.
  void drain() {
    for (ThreadRecord& record : recorder_->arena().threads()) {
      record.read_index.store(record.write_index.load(std::memory_order_acquire), std::memory_order_release);
    }
  }

 private:
  std::unique_ptr<Recorder> recorder_;
  std::vector<std::int32_t> members_;
  std::uint16_t comm_id_ = 0;
};

double quantile(std::vector<double>& values, double q) {
  const auto at = static_cast<std::ptrdiff_t>(q * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + at, values.end());
  return values[static_cast<std::size_t>(at)];
}

/// What callgrind counts: a batch of pairs, and nothing else.
template <typename Pair>
[[gnu::noinline]] void run_pairs(Recorder& recorder, Pair& pair) {
  for (int i = 0; i < kBatchPairs; ++i) pair(recorder);
}

/// One iteration is a batch of pairs; draining is not counted.
template <typename Pair>
void measure(benchmark::State& state, Bench& bench, Pair pair) {
  std::vector<double> ns_per_pair;
  ns_per_pair.reserve(1 << 20);
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    run_pairs(bench.recorder(), pair);
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(elapsed.count() * 1e-9);
    ns_per_pair.push_back(elapsed.count() / kBatchPairs);
    bench.drain();
  }
  state.counters["pairs"] = kBatchPairs;
  state.counters["p50_ns"] = quantile(ns_per_pair, 0.50);
  state.counters["p99_ns"] = quantile(ns_per_pair, 0.99);
  state.counters["dropped"] = static_cast<double>(bench.recorder().dropped_spans());
}

void compute_pair(Recorder& recorder) {
  const Token token = recorder.begin(Kind::kForwardCompute, {.microbatch = 3, .chunk = 1});
  benchmark::DoNotOptimize(token);
  recorder.end(token);
}

void not_recording(benchmark::State& state) {
  Bench bench(1);
  bench.recorder().pause();
  measure(state, bench, compute_pair);
}

void unsampled(benchmark::State& state) {
  Bench bench(0);
  measure(state, bench, compute_pair);
}

void sampled(benchmark::State& state) {
  Bench bench(1);
  measure(state, bench, compute_pair);
}

/// Three levels deep, as hooks nest: the cost of one of the pairs.
void sampled_nested(benchmark::State& state) {
  Bench bench(1);
  measure(state, bench, [depth = 0, open = std::array<Token, 4>{}](Recorder& recorder) mutable {
    if (depth < 4) {
      open[static_cast<std::size_t>(depth)] = recorder.begin(Kind::kUser);
      if (++depth == 4) {
        while (depth > 0) recorder.end(open[static_cast<std::size_t>(--depth)]);
      }
    }
  });
}

template <bool kIsSampled>
void collective(benchmark::State& state) {
  Bench bench(kIsSampled ? 1 : 0);
  measure(state, bench, [comm_id = bench.comm_id()](Recorder& recorder) {
    recorder.end(recorder.begin(Kind::kGradsReduceScatter, {.comm_id = comm_id, .payload_bytes = 1 << 20}));
  });
}

/// The ring is full: spans are dropped and counted.
void full_ring(benchmark::State& state) {
  Bench bench(1);
  for (std::uint32_t i = 0; i < bench.recorder().arena().sizes().large_ring_spans; ++i) compute_pair(bench.recorder());
  for (auto _ : state) {
    run_pairs(bench.recorder(), compute_pair);
  }
  state.counters["pairs"] = kBatchPairs;
}

void step(benchmark::State& state) {
  Bench bench(1);
  std::array<StepTicks, 64> steps;
  std::int64_t number = 0;
  measure(state, bench, [&](Recorder& recorder) {
    recorder.step_begin(++number);
    if (number % 64 == 0) recorder.step_log().read(steps);
  });
}

/// Two readings of the clock: what no recorder of spans goes below.
void clock_floor(benchmark::State& state) {
  Bench bench(1);
  measure(state, bench, [](Recorder& recorder) {
    benchmark::DoNotOptimize(recorder.clock().ticks());
    benchmark::DoNotOptimize(recorder.clock().ticks());
  });
}

BENCHMARK(clock_floor)->UseManualTime();
BENCHMARK(not_recording)->UseManualTime();
BENCHMARK(unsampled)->UseManualTime();
BENCHMARK(sampled)->UseManualTime();
BENCHMARK(sampled_nested)->UseManualTime();
BENCHMARK(collective<true>)->Name("collective_sampled")->UseManualTime();
BENCHMARK(collective<false>)->Name("collective_unsampled")->UseManualTime();
BENCHMARK(full_ring);
BENCHMARK(step)->UseManualTime();

}  // namespace
}  // namespace smon_rt
