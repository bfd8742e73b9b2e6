// What NCCL tells the plug-in is in the trace file.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>
#include <vector>

#include "format/trace_reader.h"
#include "nccl_library.h"

namespace smon_rt::testing {
namespace {

struct WrittenTrace final : TraceVisitor {
  std::vector<TraceCommOp> ops;
  TraceCommCounts counts;
  std::vector<TraceCommChannel> channels;
  TraceLosses losses;
  std::uint64_t damage_count = 0;

  void on_comm_ops(std::span<const TraceCommOp> all) override { ops.insert(ops.end(), all.begin(), all.end()); }
  void on_comm_counts(const TraceCommCounts& all) override { counts = all; }
  void on_comm_channels(std::span<const TraceCommChannel> all) override { channels.assign(all.begin(), all.end()); }
  void on_losses(const TraceLosses& all) override { losses = all; }
  void on_damage(std::uint64_t, std::string_view) override { ++damage_count; }
};

template <typename Event>
class NcclTrace : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "smon-nccl-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
    ASSERT_EQ(library_.start("nccl-trace-" + std::to_string(::getpid()), 0, directory_.string()), SMON_OK);
    begin_step(7);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void begin_step(std::int64_t step) const { library_.find<decltype(smon_step_begin)>("smon_step_begin")(step); }
  WrittenTrace stop() const {
    EXPECT_EQ(library_.stop(), SMON_OK);
    WrittenTrace trace;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      read_trace(std::as_bytes(std::span(bytes)), {}, trace);
    }
    EXPECT_EQ(trace.damage_count, 0u);
    return trace;
  }

  Library library_;
  Nccl<Event> nccl_{library_};
  int mask_ = 0;
  std::filesystem::path directory_;
};

using Versions = ::testing::Types<nccl::EventV4, nccl::EventV5, nccl::EventV6>;
TYPED_TEST_SUITE(NcclTrace, Versions);

TYPED_TEST(NcclTrace, AnOpIsThereWithItsSpanAndItsTransfersAndItsChannelsAreToo) {
  const std::int32_t members[] = {0, 1};
  smon_span_ids ids = SMON_NO_IDS;
  ids.comm_id = this->library_.template find<decltype(smon_register_communicator)>("smon_register_communicator")(
      "dp", "dp", members, 2);
  void* context = this->nccl_.init(51, 2, &this->mask_);
  const smon_token span = this->library_.template find<decltype(smon_begin)>("smon_begin")(SMON_GRADS_ALL_REDUCE, &ids);
  void* call = this->nccl_.call(context, nullptr);
  void* op = this->nccl_.coll(context, call, 5);
  this->nccl_.stop(op);
  this->nccl_.stop(call);
  this->nccl_.transfer(context, op, 1, true, 4, 1000);
  this->library_.template find<decltype(smon_end)>("smon_end")(span);
  void* send = this->nccl_.p2p(context, nullptr);
  this->nccl_.stop(send);
  const WrittenTrace trace = this->stop();
  ASSERT_EQ(trace.ops.size(), 2u);
  EXPECT_EQ(trace.ops[0].comm_id, ids.comm_id);
  EXPECT_EQ(trace.ops[0].comm_seq, 1u);
  EXPECT_EQ(trace.ops[0].step, 7u);
  EXPECT_EQ(trace.ops[0].library_seq, 5u);
  EXPECT_EQ(trace.ops[0].function, CommFunction::kAllReduce);
  EXPECT_EQ(trace.ops[0].algorithm, CommAlgorithm::kRing);
  EXPECT_EQ(trace.ops[0].transfer_count, 1u);
  EXPECT_EQ(trace.ops[0].open_transfer_count, 0u);
  EXPECT_GE(trace.ops[0].first_transfer_ns, trace.ops[0].start_ns);
  EXPECT_EQ(trace.ops[1].function, CommFunction::kSend);
  EXPECT_EQ(trace.ops[1].peer, 1);
  EXPECT_EQ(trace.ops[1].comm_seq, 0u);
  ASSERT_EQ(trace.channels.size(), 1u);
  EXPECT_EQ(trace.channels[0].nccl_comm, 51u);
  EXPECT_EQ(trace.channels[0].done, 4u);
  EXPECT_EQ(trace.channels[0].moved_bytes, 4000u);
  this->nccl_.finalize(context);
}

TYPED_TEST(NcclTrace, OfBusyThreadsEachOpIsThereOnceOrCounted) {
  constexpr int kOps = 20'000;
  const std::uint64_t before = this->library_.status().nccl_ops;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([this, i] {
      int mask = 0;
      void* context = this->nccl_.init(52 + static_cast<std::uint64_t>(i), 2, &mask);
      for (int number = 0; number < kOps; ++number) {
        void* op = this->nccl_.coll(context, nullptr);
        this->nccl_.stop(op);
        this->nccl_.transfer(context, op, i, true, 1, 10);
      }
      this->nccl_.finalize(context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const WrittenTrace trace = this->stop();
  std::set<std::uint64_t> numbers;
  for (const TraceCommOp& op : trace.ops) numbers.insert(op.number);
  EXPECT_EQ(numbers.size(), trace.ops.size());
  EXPECT_GT(trace.ops.size(), 1000u);
  EXPECT_EQ(trace.counts.ops - before, 2u * kOps);
  // Numbers that no op got are counted too: a slot was in use by an op whose thread did not run.
  EXPECT_GE(trace.ops.size() + trace.losses.overwritten_comm_ops, 2u * kOps - 100);
}

}  // namespace
}  // namespace smon_rt::testing
