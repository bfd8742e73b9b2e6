// The engine on jobs of growing length. run.py counts the instructions of the same program with callgrind.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "../tests/unit/analysis/job_builder.h"
#include "analysis/analyze.h"

namespace smon_rt::analysis {
namespace {

void analyze_job(benchmark::State& state, Rules rules) {
  testing::JobSpec spec;
  spec.dp_size = 4;
  spec.pp_size = 4;
  spec.microbatches = 8;
  spec.steps = static_cast<int>(state.range(0));
  const testing::ColumnStore columns(testing::make_job(spec));
  const JobLayout layout = spec.layout();
  for (auto _ : state) {
    auto analysis = analyze(columns.view(), layout, {}, {rules, 0});
    if (!analysis) std::abort();
    benchmark::DoNotOptimize(analysis->slowdown);
  }
  state.counters["ops"] = static_cast<double>(columns.view().size());
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(columns.view().size()));
}

void analyze_steps(benchmark::State& state) {
  analyze_job(state, Rules::kReference);
}

// The same job by the rules of our own ids.
void analyze_ids(benchmark::State& state) {
  analyze_job(state, Rules::kIds);
}

BENCHMARK(analyze_ids)->Arg(16)->Arg(128)->Unit(benchmark::kMillisecond);
BENCHMARK(analyze_steps)->Arg(16)->Arg(128)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace smon_rt::analysis
