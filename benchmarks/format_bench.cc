// The trace format: what the drain thread does to each span, and what a reader does. Items are spans, except for the
// checksum's bytes.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "format/crc32.h"
#include "format/span.h"
#include "format/trace_encoder.h"
#include "format/trace_reader.h"
#include "simulated_steps.h"

namespace {

using smon_rt::Span;

void BM_EncodeSpans(benchmark::State& state, bool has_gpu) {
  const std::vector<Span> spans = smon_rt::test::SimulatedSteps(has_gpu).make(41);
  const auto batch_size = static_cast<std::size_t>(state.range(0));
  std::string out;
  std::size_t first = 0;
  std::size_t encoded = 0;
  // Of all batches once, so that the figure does not depend on how often the loop runs.
  std::size_t bytes = 0;
  std::size_t batched = 0;
  for (; batched + batch_size <= spans.size(); batched += batch_size) {
    out.clear();
    smon_rt::append_spans(out, 1, batched, std::span(spans).subspan(batched, batch_size));
    bytes += out.size();
  }
  for (auto _ : state) {
    if (first + batch_size > spans.size()) first = 0;
    out.clear();
    smon_rt::append_spans(out, 1, first, std::span(spans).subspan(first, batch_size));
    benchmark::DoNotOptimize(out.data());
    first += batch_size;
    encoded += batch_size;
  }
  state.SetItemsProcessed(static_cast<std::int64_t>(encoded));
  state.counters["bytes_per_span"] = static_cast<double>(bytes) / static_cast<double>(batched);
}
BENCHMARK_CAPTURE(BM_EncodeSpans, host, false)->Arg(256)->Arg(1024)->Arg(2048);
BENCHMARK_CAPTURE(BM_EncodeSpans, device, true)->Arg(256)->Arg(1024)->Arg(2048);

struct CountingVisitor final : smon_rt::TraceVisitor {
  std::size_t span_count = 0;
  void on_spans(const smon_rt::SpanBatch& batch) override { span_count += batch.spans.size(); }
};

void BM_ReadSpans(benchmark::State& state, bool has_gpu) {
  const std::vector<Span> spans = smon_rt::test::SimulatedSteps(has_gpu).make(200);
  std::string out;
  smon_rt::append_spans(out, 1, 0, spans);
  CountingVisitor visitor;
  for (auto _ : state) smon_rt::read_trace(std::as_bytes(std::span(out)), {}, visitor);
  state.SetItemsProcessed(static_cast<std::int64_t>(visitor.span_count));
}
BENCHMARK_CAPTURE(BM_ReadSpans, host, false);
BENCHMARK_CAPTURE(BM_ReadSpans, device, true);

void BM_PassOverSpans(benchmark::State& state) {
  const std::vector<Span> spans = smon_rt::test::SimulatedSteps(false).make(200);
  std::string out;
  smon_rt::append_spans(out, 1, 0, spans);
  CountingVisitor visitor;
  for (auto _ : state) smon_rt::read_trace(std::as_bytes(std::span(out)), {.first_step = 1'000'000}, visitor);
  state.SetItemsProcessed(static_cast<std::int64_t>(spans.size()) * state.iterations());
}
BENCHMARK(BM_PassOverSpans);

void BM_Crc32(benchmark::State& state) {
  const std::string bytes(16'384, 'x');
  for (auto _ : state) benchmark::DoNotOptimize(smon_rt::crc32(std::as_bytes(std::span(bytes))));
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes.size()) * state.iterations());
}
BENCHMARK(BM_Crc32);

}  // namespace
