// The drain thread encodes while a job trains: it must not allocate, once its output has grown.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <new>
#include <string>
#include <vector>

#include "format/span.h"
#include "format/trace_encoder.h"
#include "simulated_steps.h"
#include "trace_samples.h"

namespace {

thread_local std::size_t allocation_count = 0;

}  // namespace

void* operator new(std::size_t size) {
  ++allocation_count;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*size*/) noexcept {
  std::free(memory);
}

namespace smon_rt {
namespace {

template <typename Append>
std::size_t allocations_when_warm(Append append) {
  std::string out;
  append(out);
  out.clear();
  const std::size_t before = allocation_count;
  append(out);
  return allocation_count - before;
}

TEST(EncoderAllocation, TheCounterCounts) {
  const std::size_t before = allocation_count;
  const std::string long_enough(1000, 'x');
  EXPECT_GT(allocation_count, before);
}

TEST(EncoderAllocation, SpansNeedNoneOnceTheOutputHasGrown) {
  const std::vector<Span> steps = test::SimulatedSteps(true).make(60);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_spans(out, 1, 0, steps); }), 0U);
  const std::vector<Span> random = test::random_spans(3000, 1);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_spans(out, 1, 0, random); }), 0U);
}

TEST(EncoderAllocation, StepsNamesAndCountsNeedNoneOnceTheOutputHasGrown) {
  const std::vector<StepTime> times = test::sample_step_times();
  const TraceNames names = test::sample_names();
  const TraceLosses losses{.dropped_by_kind = {{1, 2}}, .sink_error = "No space left on device"};
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_step_times(out, times); }), 0U);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_names(out, names); }), 0U);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_losses(out, losses); }), 0U);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_recorder_cost(out, {}); }), 0U);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_clock_snapshot(out, {}); }), 0U);
  EXPECT_EQ(allocations_when_warm([&](std::string& out) { append_end(out, "stop"); }), 0U);
}

}  // namespace
}  // namespace smon_rt
