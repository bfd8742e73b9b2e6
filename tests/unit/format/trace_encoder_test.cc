#include "format/trace_encoder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "collected_trace.h"
#include "format/trace_reader.h"
#include "simulated_steps.h"
#include "trace_samples.h"

namespace smon_rt {
namespace {

using test::collect;
using test::CollectedTrace;

double bytes_per_span(const std::vector<Span>& spans, std::size_t batch_size) {
  std::string out;
  for (std::size_t i = 0; i < spans.size(); i += batch_size) {
    append_spans(out, 1, i, std::span(spans).subspan(i, std::min(batch_size, spans.size() - i)));
  }
  EXPECT_TRUE(test::equal(collect(out).all_spans(), spans));
  return static_cast<double>(out.size()) / static_cast<double>(spans.size());
}

TEST(TraceEncoder, SpansOfATrainingStepTakeAtMost12BytesEach) {
  for (const bool has_gpu : {false, true}) {
    const std::vector<Span> spans = test::SimulatedSteps(has_gpu).make(40);
    for (const std::size_t batch_size : {128, 256, 512, 1024, 2048}) {
      const double bytes = bytes_per_span(spans, batch_size);
      std::printf("%s, %4zu spans at a time: %.2f bytes a span\n", has_gpu ? "with device times" : "host times only",
                  batch_size, bytes);
      // Small batches pay for their table of shapes; with device times only large ones get there.
      if (has_gpu ? batch_size == 2048 : batch_size >= 128) {
        EXPECT_LE(bytes, 12.0) << batch_size << (has_gpu ? " with device times" : "");
      }
    }
  }
}

TEST(TraceEncoder, EverySortOfPacketReadsBackAsItWasWritten) {
  const std::vector<Span> spans = test::SimulatedSteps(true).make(2);
  const CollectedTrace trace = collect(test::sample_file(spans));
  EXPECT_EQ(trace.damages, std::vector<test::Damage>{});
  EXPECT_EQ(trace.identities, std::vector{test::sample_identity()});
  EXPECT_EQ(trace.names, std::vector{test::sample_names()});
  ASSERT_EQ(trace.step_times.size(), 1U);
  EXPECT_EQ(trace.step_times[0], test::sample_step_times());
  ASSERT_EQ(trace.clock_snapshots.size(), 1U);
  EXPECT_EQ(trace.clock_snapshots[0], (TraceClockSnapshot{-5, 123'456'789, 1'700'000'000'000'000'000, 40}));
  ASSERT_EQ(trace.clock_maps.size(), 1U);
  EXPECT_EQ(trace.clock_maps[0],
            (TraceClockMap{"GPU-1", -1, 60'000'000'000, -1.5e12, 1.0000001, 15'000, 3, "event", 2}));
  ASSERT_EQ(trace.losses.size(), 1U);
  EXPECT_EQ(trace.losses[0],
            (TraceLosses{
                {{1, 5}, {23, 1'000'000'000'000}}, 1, 2, 3, 4, 5, 6, "No space left on device", 7, 8, 9, 10, 11, 12}));
  ASSERT_EQ(trace.costs.size(), 1U);
  EXPECT_EQ(trace.costs[0], (TraceRecorderCost{1, 2, 3, 4, 5, 6.5, -7.25, 0.0, -0.5, 8, 9}));
  EXPECT_EQ(trace.leftovers, (std::vector<TraceLeftover>{{-4711, 1'700'000'000'000'000'001, 5'000'000'000, 3}}));
  EXPECT_EQ(trace.comm_ops, test::sample_comm_ops());
  EXPECT_EQ(trace.comm_counts, (std::vector<TraceCommCounts>{{1, 2, 3, 4, 5, 6, 7, 8}}));
  EXPECT_EQ(trace.comm_channels, test::sample_comm_channels());
  EXPECT_EQ(trace.ends, std::vector<std::string>{"stop"});
  EXPECT_TRUE(trace.summary.has_end);
  EXPECT_TRUE(test::equal(trace.all_spans(), spans));
}

/// What a rank of a large job tells: gradients in buckets by three communicators, messages to two neighbours.
std::vector<TraceCommOp> ops_of_steps(std::uint32_t step_count, bool has_network, bool has_kernels) {
  std::mt19937_64 random(7);
  std::vector<TraceCommOp> ops;
  std::map<std::uint32_t, std::uint32_t> sequences;
  std::int64_t now_ns = 1'000'000'000'000;
  for (std::uint32_t step = 100; step < 100 + step_count; ++step) {
    for (std::uint32_t i = 0; i < 160; ++i) {
      TraceCommOp op;
      op.number = ops.size();
      op.step = step;
      op.start_ns = now_ns += static_cast<std::int64_t>(random() % 20'000'000);
      op.enqueue_ns = 2'000 + random() % 10'000;
      op.flags = comm_op_flag::kEnqueued;
      op.communicator = 1 + i % 4;
      op.comm_id = static_cast<std::uint16_t>(1 + i % 4);
      op.comm_seq = ++sequences[op.communicator * 8 + i % 2];
      op.channel_count = 16;
      op.datatype = CommDatatype::kBfloat16;
      op.payload_bytes = (std::uint64_t{1} << 20) * (1 + i % 20);
      if (op.communicator == 4) {
        op.function = i % 2 == 0 ? CommFunction::kSend : CommFunction::kRecv;
        op.peer = 1 + static_cast<std::int32_t>(i % 2);
      } else {
        op.function = i % 2 == 0 ? CommFunction::kReduceScatter : CommFunction::kAllGather;
        op.peer = 0;
        op.algorithm = CommAlgorithm::kRing;
        op.protocol = CommProtocol::kSimple;
        op.library_seq = op.comm_seq;
      }
      if (has_network) {
        op.transfer_count = 32;
        op.first_transfer_ns = op.start_ns + static_cast<std::int64_t>(random() % 5'000'000);
        op.transfer_ns = random() % 5'000'000;
      }
      if (has_kernels) {
        op.kernel_count = 16;
        op.kernel_start_device_ns = static_cast<std::uint64_t>(op.start_ns) + random() % 5'000'000;
        op.kernel_duration_device_ns = random() % 5'000'000;
        op.slowest_channel = static_cast<std::uint8_t>(random() % 16);
      }
      ops.push_back(op);
    }
  }
  return ops;
}

TEST(TraceEncoder, OpsOfNcclTakeAtMost20BytesEach) {
  for (const bool has_network : {false, true}) {
    for (const bool has_kernels : {false, true}) {
      const std::vector<TraceCommOp> ops = ops_of_steps(20, has_network, has_kernels);
      std::string out;
      for (std::size_t i = 0; i < ops.size(); i += 160) append_comm_ops(out, std::span(ops).subspan(i, 160));
      EXPECT_EQ(collect(out).comm_ops, ops);
      const double bytes = static_cast<double>(out.size()) / static_cast<double>(ops.size());
      std::printf("%s, %s: %.2f bytes an op\n", has_network ? "transfers" : "no network",
                  has_kernels ? "kernels" : "no kernels", bytes);
      EXPECT_LE(bytes, has_network && has_kernels ? 26.0 : 20.0);
    }
  }
}

TEST(TraceEncoder, OpsOfNcclWithAnyValuesReadBackExactly) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const std::vector<TraceCommOp> ops = test::random_comm_ops(1 + seed * 17 % 1100, seed);
    std::string out;
    append_comm_ops(out, ops);
    const CollectedTrace trace = collect(out);
    ASSERT_EQ(trace.damages, std::vector<test::Damage>{}) << seed;
    ASSERT_EQ(trace.comm_ops, ops) << seed;
  }
}

TEST(TraceEncoder, NoOpsAndNoChannelsOfNcclAreNoPackets) {
  std::string out;
  append_comm_ops(out, {});
  append_comm_channels(out, {});
  EXPECT_EQ(out, "");
}

TEST(TraceEncoder, SpansWithAnyValuesReadBackExactly) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const std::vector<Span> spans = test::random_spans(1 + seed * 7 % 90, seed);
    std::string out;
    append_spans(out, static_cast<std::uint32_t>(seed), ~seed, spans);
    const CollectedTrace trace = collect(out);
    ASSERT_EQ(trace.damages, std::vector<test::Damage>{}) << seed;
    ASSERT_EQ(trace.batches.size(), 1U);
    EXPECT_EQ(trace.batches[0].ring_id, seed);
    EXPECT_EQ(trace.batches[0].first_index, ~seed);
    ASSERT_TRUE(test::equal(trace.batches[0].spans, spans)) << seed;
  }
}

TEST(TraceEncoder, ManySpansBecomePacketsWithConsecutiveIndices) {
  // Spans that repeat, then some that never do.
  std::vector<Span> spans = test::SimulatedSteps(true).make(45);
  const std::vector<Span> others = test::random_spans(1500, 5);
  spans.insert(spans.end(), others.begin(), others.end());
  std::string out;
  append_spans(out, 8, 100, spans);
  const CollectedTrace trace = collect(out);
  std::uint64_t next = 100;
  for (const test::CollectedBatch& batch : trace.batches) {
    EXPECT_EQ(batch.first_index, next);
    EXPECT_LE(batch.spans.size(), kSpansPerPacket);
    next += batch.spans.size();
  }
  EXPECT_GE(trace.batches.size(), 4U);
  EXPECT_TRUE(test::equal(trace.all_spans(), spans));
}

TEST(TraceEncoder, NothingIsWrittenForNoSpansAndNoSteps) {
  std::string out;
  append_spans(out, 1, 0, {});
  append_step_times(out, {});
  EXPECT_EQ(out, "");
}

TEST(TraceEncoder, WhatIsThereAlreadyStaysAsItIs) {
  const std::vector<Span> spans = test::random_spans(50, 9);
  const std::string alone = test::sample_file(spans);
  std::string out = alone;
  out += test::sample_file(spans);
  EXPECT_EQ(out, alone + alone);
  std::string appended = "before";
  append_end(appended, "stop");
  EXPECT_TRUE(appended.starts_with("before"));
}

TEST(TraceEncoder, EqualRecordsAreEqualBytes) {
  const std::vector<Span> spans = test::SimulatedSteps(false).make(1);
  EXPECT_EQ(test::sample_file(spans), test::sample_file(spans));
}

TEST(TraceEncoder, EmptyRecordsAreWrittenAndRead) {
  std::string out;
  append_identity(out, {});
  append_names(out, {});
  append_losses(out, {});
  append_clock_map(out, {});
  append_end(out, "");
  const CollectedTrace trace = collect(out);
  EXPECT_EQ(trace.damages, std::vector<test::Damage>{});
  EXPECT_EQ(trace.identities, std::vector<TraceIdentity>(1));
  EXPECT_EQ(trace.losses, std::vector<TraceLosses>(1));
  EXPECT_EQ(trace.clock_maps, std::vector<TraceClockMap>(1));
  EXPECT_EQ(trace.ends, std::vector<std::string>{""});
}

}  // namespace
}  // namespace smon_rt
