// What NCCL's callbacks cost: those of one collective, and those of one transfer over the network, which are folded in
// place. run.py counts the instructions of the same program with callgrind.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "cuda/nccl_profiler.h"
#include "record/recorder.h"

namespace smon_rt {
namespace {

using nccl::EventState;
using nccl::EventV6;
using nccl::Profiler;

constexpr int kBatch = 64;
constexpr int kCallbacksOfAStep = 5;  // start, three states, stop

class Bench {
 public:
  Bench() {
    RecorderOptions options;
    options.arena.run_id = "nccl_bench-" + std::to_string(::getpid());
    options.sampling = {.sample_ratio = 0, .warmup_steps = 0, .always_steps = 0};
    auto made = Recorder::create(options);
    if (!made) std::abort();
    recorder_ = std::move(*made);
    recorder_->resume();
    recorder_->step_begin(0);
    comm_id_ = recorder_->register_communicator("dp", "dp", {});
    profiler_ = std::make_unique<Profiler>();
    profiler_->set_recording(true);
    context_ = profiler_->open(6, 1, &mask_, 2);
  }
  Recorder& recorder() { return *recorder_; }
  Profiler& profiler() { return *profiler_; }
  void* context() const { return context_; }
  Token begin_span() { return recorder_->begin(Kind::kGradsAllReduce, {.comm_id = comm_id_}); }

 private:
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<Profiler> profiler_;
  std::uint16_t comm_id_ = 0;
  int mask_ = 0;
  void* context_ = nullptr;
};

EventV6 event_of(std::uint64_t type, void* parent) {
  EventV6 event = {};
  event.type = type;
  event.parentObj = parent;
  return event;
}

/// What callgrind counts: the callbacks of collectives, whose events NCCL makes.
[[gnu::noinline]] void run_collectives(Bench& bench, EventV6* group, EventV6* call, EventV6* op) {
  Profiler& profiler = bench.profiler();
  for (int i = 0; i < kBatch; ++i) {
    void* group_handle = profiler.start(bench.recorder(), bench.context(), *group);
    call->parentObj = group_handle;
    void* call_handle = profiler.start(bench.recorder(), bench.context(), *call);
    op->parentObj = call_handle;
    void* op_handle = profiler.start(bench.recorder(), bench.context(), *op);
    profiler.stop(bench.recorder(), op_handle);
    profiler.stop(bench.recorder(), call_handle);
    profiler.stop(bench.recorder(), group_handle);
  }
}

[[gnu::noinline]] void run_steps(Bench& bench, void* transfer) {
  Profiler& profiler = bench.profiler();
  nccl::StateArgs args{};
  args.proxyStep.transSize = 1 << 17;
  EventV6 event = event_of(nccl::kProxyStepEvent, transfer);
  for (int i = 0; i < kBatch; ++i) {
    event.proxyStep.step = i;
    void* step = profiler.start(bench.recorder(), bench.context(), event);
    profiler.record(bench.recorder(), step, EventState::kStepSendGpuWait, &args);
    profiler.record(bench.recorder(), step, EventState::kStepSendPeerWait, &args);
    profiler.record(bench.recorder(), step, EventState::kStepSendWait, &args);
    profiler.stop(bench.recorder(), step);
  }
}

void collective(benchmark::State& state) {
  Bench bench;
  EventV6 group = event_of(nccl::kGroupApiEvent, nullptr);
  EventV6 call = event_of(nccl::kCollApiEvent, nullptr);
  EventV6 op = event_of(nccl::kCollEvent, nullptr);
  op.coll.func = "ReduceScatter";
  op.coll.count = 1 << 20;
  op.coll.datatype = "ncclBfloat16";
  op.coll.algo = "RING";
  op.coll.proto = "SIMPLE";
  for (auto _ : state) {
    const Token span = bench.begin_span();
    const auto begin = std::chrono::steady_clock::now();
    run_collectives(bench, &group, &call, &op);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    bench.recorder().end(span);
  }
  state.counters["ops"] = kBatch;
}

void proxy_step(benchmark::State& state) {
  Bench bench;
  EventV6 event = event_of(nccl::kProxyOpEvent, nullptr);
  event.proxyOp = {::getpid(), 3, 1, kBatch, 1 << 17, 1};
  for (auto _ : state) {
    void* transfer = bench.profiler().start(bench.recorder(), bench.context(), event);
    const auto begin = std::chrono::steady_clock::now();
    run_steps(bench, transfer);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    bench.profiler().stop(bench.recorder(), transfer);
  }
  state.counters["ops"] = kBatch * kCallbacksOfAStep;
}

BENCHMARK(collective)->UseManualTime();
BENCHMARK(proxy_step)->UseManualTime();

}  // namespace
}  // namespace smon_rt
