#include "format/once_visitor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "collected_trace.h"
#include "format/trace_encoder.h"
#include "trace_samples.h"

namespace smon_rt::test {
namespace {

CollectedTrace read_once(const std::string& file, std::uint64_t* repeated_spans = nullptr,
                         std::uint64_t* repeated_steps = nullptr) {
  CollectedTrace trace;
  OnceVisitor once(trace);
  trace.summary = read_trace(std::as_bytes(std::span(file)), {}, once);
  if (repeated_spans != nullptr) *repeated_spans = once.repeated_spans();
  if (repeated_steps != nullptr) *repeated_steps = once.repeated_steps();
  return trace;
}

std::vector<Span> spans_of(std::uint64_t first, std::uint64_t count) {
  std::vector<Span> spans(count);
  for (std::uint64_t i = 0; i < count; ++i) {
    spans[i].start = static_cast<std::int64_t>(1000 + 10 * (first + i));
    spans[i].end = spans[i].start + 5;
  }
  return spans;
}

TEST(OnceVisitor, AFileAppendedToItselfGivesEachSpanStepAndCostOnce) {
  std::string file;
  append_identity(file, sample_identity());
  append_spans(file, 1, 0, spans_of(0, 50));
  append_step_times(file, sample_step_times());
  TraceRecorderCost cost;
  cost.drain_cpu_ns = 7;
  append_recorder_cost(file, cost);
  append_spans(file, 1, 50, spans_of(50, 10));
  append_comm_ops(file, sample_comm_ops());
  const CollectedTrace alone = read_once(file);
  std::uint64_t spans = 0;
  std::uint64_t steps = 0;
  const CollectedTrace joined = read_once(file + file + file, &spans, &steps);
  EXPECT_EQ(joined.batches, alone.batches);
  EXPECT_EQ(joined.step_times, alone.step_times);
  EXPECT_EQ(joined.costs, alone.costs);
  EXPECT_EQ(joined.comm_ops, sample_comm_ops());
  EXPECT_EQ(spans, 120u);
  EXPECT_EQ(steps, 2 * sample_step_times().size());
  // The reader alone gives what is there.
  CollectedTrace plain;
  const std::string twice = file + file;
  read_trace(std::as_bytes(std::span(twice)), {}, plain);
  EXPECT_EQ(plain.step_times.size(), 2u);
}

TEST(OnceVisitor, ProcessesDoNotTakeEachOthersSpansForTheirOwn) {
  std::string file;
  TraceIdentity other = sample_identity();
  append_identity(file, other);
  append_spans(file, 1, 0, spans_of(0, 5));
  append_step_times(file, sample_step_times());
  ++other.rank;
  append_identity(file, other);
  append_spans(file, 1, 0, spans_of(0, 5));
  append_step_times(file, sample_step_times());
  std::uint64_t spans = 0;
  const CollectedTrace trace = read_once(file, &spans);
  EXPECT_EQ(trace.all_spans().size(), 10u);
  EXPECT_EQ(trace.step_times.size(), 2u);
  EXPECT_EQ(spans, 0u);
}

TEST(OnceVisitor, AStepOfTheSameNumberAtAnotherTimeIsAnother) {
  std::string file;
  append_step_times(file, std::vector<StepTime>{{7, 1'000, 10, false, false}});
  append_step_times(file, std::vector<StepTime>{{7, 2'000, 10, false, false}, {7, 1'000, 10, false, false}});
  const CollectedTrace trace = read_once(file);
  ASSERT_EQ(trace.step_times.size(), 2u);
  EXPECT_EQ(trace.step_times[1].size(), 1u);
}

TEST(OnceVisitor, BatchesThatOverlapInAnyWayGiveEachIndexOnce) {
  std::mt19937 random(17);
  for (int turn = 0; turn < 300; ++turn) {
    std::string file;
    std::set<std::uint64_t> written;
    std::uint64_t total = 0;
    for (int i = 0; i < 20; ++i) {
      const std::uint64_t first = random() % 60;
      const std::uint64_t count = 1 + random() % 12;
      append_spans(file, 3, first, spans_of(first, count));
      for (std::uint64_t index = first; index < first + count; ++index) written.insert(index);
      total += count;
    }
    std::uint64_t repeated = 0;
    const CollectedTrace trace = read_once(file, &repeated);
    std::set<std::uint64_t> read;
    for (const CollectedBatch& batch : trace.batches) {
      for (std::size_t i = 0; i < batch.spans.size(); ++i) {
        EXPECT_TRUE(read.insert(batch.first_index + i).second) << turn;
        EXPECT_EQ(batch.spans[i].start, static_cast<std::int64_t>(1000 + 10 * (batch.first_index + i)));
      }
    }
    ASSERT_EQ(read, written) << turn;
    ASSERT_EQ(repeated, total - written.size()) << turn;
  }
}

}  // namespace
}  // namespace smon_rt::test
