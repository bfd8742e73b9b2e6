// What the drain thread does to a span: look, convert, encode, write. Target: 5 M spans/s on one core.

#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>

#include "base/clock_converter.h"
#include "record/event_resolver.h"
#include "record/gpu_timer.h"
#include "record/recorder.h"
#include "record/ring_collector.h"
#include "record/trace_file.h"

namespace smon_rt {
namespace {

constexpr int kSpansPerRound = 2048;  // half a large ring

std::unique_ptr<Recorder> make_recorder() {
  RecorderOptions options;
  options.arena.run_id = "bench" + std::to_string(::getpid());
  options.sampling.sample_ratio = 1;
  auto recorder = Recorder::create(options);
  if (!recorder) return nullptr;
  (*recorder)->resume();
  return std::move(*recorder);
}

/// Spans as a training step makes them: four kinds, microbatches, a communicator with peer, sequence and bytes.
void fill(Recorder& recorder, std::uint16_t communicator) {
  static const Kind kKinds[] = {Kind::kForwardRecv, Kind::kForwardCompute, Kind::kForwardSend, Kind::kBackwardCompute};
  for (int i = 0; i < kSpansPerRound; ++i) {
    SpanIds ids;
    ids.microbatch = static_cast<std::int16_t>(i / 4 % 16);
    const Kind kind = kKinds[i % 4];
    if (is_communication(kind)) {
      ids.comm_id = communicator;
      ids.peer = kind == Kind::kForwardSend ? 1 : 3;
      ids.payload_bytes = 4 << 20;
    }
    recorder.end(recorder.begin(kind, ids));
  }
}

void drain(benchmark::State& state, const std::string& directory) {
  const std::unique_ptr<Recorder> recorder = make_recorder();
  if (recorder == nullptr) return state.SkipWithError("another recorder is in the way");
  const std::uint16_t communicator = recorder->register_communicator("pp", "pp", {});
  ClockConverter clock;
  clock.add(recorder->clock().read());
  NullGpuTimer timer;
  EventResolver resolver(recorder->arena(), recorder->interner(), timer, recorder->clock(), clock);
  RingCollector rings(recorder->arena(), clock, resolver, 1'000'000'000);
  TraceFileOptions options;
  options.directory = directory;
  TraceFile file(options);
  if (!file.open_next()) return state.SkipWithError("cannot write to the temporary directory");
  std::string out;
  std::uint64_t spans = 0;
  std::int64_t step = 0;
  for (auto _ : state) {
    state.PauseTiming();
    recorder->step_begin(step++);
    fill(*recorder, communicator);
    StepTicks taken[4];
    while (recorder->step_log().read(taken) > 0) {
    }
    state.ResumeTiming();
    out.clear();
    clock.add(recorder->clock().read());
    spans += rings.look(monotonic_ns(), true);
    rings.encode(out);
    if (file.is_on()) file.append(out);
    rings.commit();
  }
  state.counters["spans/s"] = benchmark::Counter(static_cast<double>(spans), benchmark::Counter::kIsRate);
  if (file.is_on() && spans > 0) {
    state.counters["bytes/span"] = static_cast<double>(file.total_bytes()) / static_cast<double>(spans);
  }
  state.counters["dropped"] = static_cast<double>(recorder->dropped_spans());
}

void BM_DrainToMemory(benchmark::State& state) {
  drain(state, "");
}
BENCHMARK(BM_DrainToMemory);

void BM_DrainToFile(benchmark::State& state) {
  std::string directory = (std::filesystem::temp_directory_path() / "smon-drain-bench-XXXXXX").string();
  if (::mkdtemp(directory.data()) == nullptr) return state.SkipWithError("no temporary directory");
  drain(state, directory);
  std::filesystem::remove_all(directory);
}
BENCHMARK(BM_DrainToFile);

}  // namespace
}  // namespace smon_rt
