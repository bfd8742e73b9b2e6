// The drain thread encodes while a job trains: it must not allocate, once its output has grown.

#include <gtest/gtest.h>

#include <cstddef>
#include <new>
#include <string>
#include <vector>

#include "collected_trace.h"
#include "counted_allocations.h"
#include "format/span.h"
#include "format/trace_encoder.h"
#include "simulated_steps.h"
#include "trace_samples.h"

namespace smon_rt {
namespace {

using test::allocation_count;
using test::failing_allocation;

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

TEST(EncoderAllocation, AnyThatFailsIsThrownAndLeavesWholePackets) {
  const std::vector<Span> steps = test::SimulatedSteps(true).make(60);
  const TraceIdentity identity = test::sample_identity();
  const TraceNames names = test::sample_names();
  const std::vector<StepTime> times = test::sample_step_times();
  std::string whole;
  append_end(whole, "before");
  const auto append_all = [&](std::string& out) {
    append_identity(out, identity);
    append_names(out, names);
    append_step_times(out, times);
    append_losses(out, {});
    append_spans(out, 1, 0, steps);
  };
  std::size_t failures = 0;
  for (bool is_done = false; !is_done; ++failures) {
    std::string out = whole;
    failing_allocation = allocation_count + 1 + failures;
    try {
      append_all(out);
      is_done = true;
    } catch (const std::bad_alloc&) {
    }
    failing_allocation = 0;
    const test::CollectedTrace trace = test::collect(out);
    ASSERT_TRUE(trace.damages.empty()) << failures;
    ASSERT_EQ(trace.ends.size(), 1U);
  }
  EXPECT_GT(failures, 5U);
}

}  // namespace
}  // namespace smon_rt
