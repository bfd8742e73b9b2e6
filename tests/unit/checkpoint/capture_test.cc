// One capture: what of a state gets into its slot, whatever the training thread, the helper and the GPU do meanwhile.

#include "checkpoint/capture.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fakes/fake_gpu.h"
#include "fakes/fake_gpu_copier.h"

namespace smon_rt {
namespace {

using agent_messages::SkipCause;

constexpr std::uint64_t kTraining = 1;  // the job's stream
constexpr std::size_t kHeaderBytes = 4096;

std::shared_ptr<SlotMapping> make_slot(std::uint64_t content_bytes) {
  const int fd = ::memfd_create("slot", MFD_CLOEXEC);
  EXPECT_EQ(::ftruncate(fd, static_cast<off_t>(slot_file_bytes(content_bytes))), 0);
  auto mapping = SlotMapping::map_writable(OwnedDescriptor(fd), content_bytes);
  EXPECT_TRUE(mapping) << (mapping ? "" : mapping.error().message);
  return *mapping;
}

std::uint64_t address_of(const void* memory) {
  return reinterpret_cast<std::uint64_t>(memory);
}

class CaptureTest : public ::testing::Test {
 protected:
  void set_layout(const std::vector<CaptureRange>& ranges) {
    const std::vector<std::byte> header(kHeaderBytes, std::byte{'h'});
    auto layout = CaptureLayout::make(1, header, ranges);
    ASSERT_TRUE(layout) << layout.error().message;
    layout_ = *layout;
    slot_ = make_slot(layout_->content_bytes);
  }

  Result<void> begin(std::uint64_t step) { return capture_.begin({{3, step}, 0, slot_, layout_}, {}, kTraining); }
  bool is_even() const { return slot_->header().generation.load() % 2 == 0; }
  bool all_are(std::size_t offset, std::size_t bytes, std::byte value) const {
    const auto part = slot_->content().subspan(offset, bytes);
    return std::ranges::all_of(part, [&](std::byte each) { return each == value; });
  }
  CaptureEnd only_end() const {
    EXPECT_EQ(ends_.size(), 1u);
    return ends_.empty() ? CaptureEnd{} : ends_[0];
  }

  FakeGpu gpu_;
  FakeGpuCopier copier_{gpu_};
  CaptureOptions options_{
      .copy_threads = 2, .enqueue_limit = std::chrono::milliseconds(50), .copy_limit = std::chrono::seconds(5)};
  std::vector<CaptureEnd> ends_;
  std::shared_ptr<const CaptureLayout> layout_;
  std::shared_ptr<SlotMapping> slot_;
  Capture capture_{
      copier_, {"run", "dp=0", "world 1"}, options_, [this](CaptureEnd end) { ends_.push_back(end); }, [] {}};
};

TEST_F(CaptureTest, AStateOfTheHostIsInTheSlotAsItWasAtTheCapture) {
  std::vector<std::byte> weights(3 << 20, std::byte{1});
  std::vector<std::byte> statistics(100, std::byte{2});
  set_layout({{kHeaderBytes, weights.size(), address_of(weights.data()), -1, false},
              {kHeaderBytes + weights.size(), statistics.size(), address_of(statistics.data()), -1, true}});
  ASSERT_TRUE(begin(7));
  std::ranges::fill(statistics, std::byte{9});  // the next forward
  capture_.before_update(0);
  std::ranges::fill(weights, std::byte{9});  // the optimizer
  EXPECT_TRUE(capture_.wait_until_ended());

  EXPECT_TRUE(only_end().is_complete);
  EXPECT_EQ(only_end().label, (Label{3, 7}));
  EXPECT_TRUE(is_even());
  EXPECT_TRUE(all_are(0, kHeaderBytes, std::byte{'h'}));
  EXPECT_TRUE(all_are(kHeaderBytes, weights.size(), std::byte{1}));
  EXPECT_TRUE(all_are(kHeaderBytes + weights.size(), statistics.size(), std::byte{2}));
  const SlotHeader& header = slot_->header();
  EXPECT_EQ(header.magic, kSlotMagic);
  EXPECT_EQ(header.step, 7u);
  EXPECT_EQ(header.incarnation, 3u);
  EXPECT_EQ(header.content_bytes, layout_->content_bytes);
  EXPECT_STREQ(header.run_id, "run");
  EXPECT_STREQ(header.topology, "world 1");
}

TEST_F(CaptureTest, ThousandsOfTensorsOverManyStepsAreNeverTorn) {
  constexpr std::size_t kTensors = 1000, kBytes = 600;
  std::vector<std::byte> weights(kTensors * kBytes);
  std::vector<CaptureRange> ranges;
  for (std::size_t i = 0; i < kTensors; ++i) {
    ranges.push_back({kHeaderBytes + i * kBytes, kBytes, address_of(&weights[i * kBytes]), -1, false});
  }
  set_layout(ranges);
  for (std::uint64_t step = 1; step <= 300; ++step) {
    const auto value = static_cast<std::byte>(step);
    std::ranges::fill(weights, value);
    ASSERT_TRUE(begin(step));
    capture_.before_update(0);
    std::ranges::fill(weights, std::byte{0});
    ASSERT_TRUE(capture_.wait_until_ended());
    ASSERT_TRUE(is_even());
    ASSERT_TRUE(all_are(kHeaderBytes, weights.size(), value)) << "step " << step;
  }
  EXPECT_EQ(ends_.size(), 300u);
}

class GpuCaptureTest : public CaptureTest {
 protected:
  static constexpr std::size_t kWeights = 1000, kAmax = 64;

  void SetUp() override {
    ASSERT_TRUE(copier_.open(4096));
    weights_ = gpu_.allocate(kWeights);
    amax_ = gpu_.allocate(kAmax);
    set_layout({{kHeaderBytes, kWeights, weights_, 0, false}, {kHeaderBytes + kWeights, kAmax, amax_, 0, true}});
    gpu_.fill(kTraining, weights_, kWeights, std::byte{1});
    gpu_.fill(kTraining, amax_, kAmax, std::byte{2});
  }
  /// What follows an iteration: the next forward changes volatile state, the optimizer changes all.
  void next_forward() { gpu_.fill(kTraining, amax_, kAmax, std::byte{9}); }
  void optimizer() {
    capture_.before_update(kTraining);
    gpu_.fill(kTraining, weights_, kWeights, std::byte{9});
  }
  void serve_until_ended() {
    for (int i = 0; i < 10'000 && capture_.is_under_way(); ++i) {
      capture_.serve();
      gpu_.streams().run();
    }
    ASSERT_FALSE(capture_.is_under_way());
  }
  bool has_what_was_captured() const {
    return all_are(kHeaderBytes, kWeights, std::byte{1}) && all_are(kHeaderBytes + kWeights, kAmax, std::byte{2});
  }

  std::uint64_t weights_ = 0, amax_ = 0;
};

TEST_F(GpuCaptureTest, TheOptimizersStreamWaitsForCopiesThatAreEnqueued) {
  ASSERT_TRUE(begin(1));
  capture_.serve();
  next_forward();
  optimizer();
  gpu_.streams().run(kTraining);  // as far as it gets alone: not into the optimizer
  serve_until_ended();
  EXPECT_TRUE(only_end().is_complete);
  EXPECT_TRUE(is_even());
  EXPECT_TRUE(has_what_was_captured());
}

TEST_F(GpuCaptureTest, WithoutTheGateTheSameSnapshotIsTorn) {
  copier_.set_gates_nothing(true);
  ASSERT_TRUE(begin(1));
  capture_.serve();
  next_forward();
  optimizer();
  gpu_.streams().run(kTraining);
  serve_until_ended();
  EXPECT_FALSE(has_what_was_captured());
}

TEST_F(GpuCaptureTest, AHelperThatIsLateCancelsTheSnapshotAndNeverTearsIt) {
  ASSERT_TRUE(begin(1));
  next_forward();
  optimizer();  // the helper has enqueued nothing yet
  gpu_.streams().run(kTraining);
  serve_until_ended();
  EXPECT_FALSE(only_end().is_complete);
  EXPECT_EQ(only_end().cause, SkipCause::kCancelled);
  EXPECT_FALSE(is_even());
}

TEST_F(GpuCaptureTest, AHelperThatIsHeldUpWithinEnqueueCancelsTheSnapshotToo) {
  std::atomic<bool> is_inside{false}, may_go_on{false};
  copier_.set_before_enqueue([&] {
    is_inside = true;
    while (!may_go_on) std::this_thread::yield();
  });
  ASSERT_TRUE(begin(1));
  std::thread helper([&] { capture_.serve(); });
  while (!is_inside) std::this_thread::yield();
  optimizer();
  may_go_on = true;
  helper.join();
  serve_until_ended();
  EXPECT_FALSE(only_end().is_complete);
  EXPECT_FALSE(is_even());
}

TEST_F(GpuCaptureTest, ManyStepsWithAHelperOfItsOwnAreEitherWholeOrCancelled) {
  std::atomic<bool> is_over{false};
  gpu_.streams().set_automatic(true);
  std::thread helper([&] {
    while (!is_over) capture_.serve();
  });
  std::size_t whole = 0;
  for (std::uint64_t step = 1; step <= 200; ++step) {
    gpu_.fill(kTraining, weights_, kWeights, std::byte{1});
    gpu_.fill(kTraining, amax_, kAmax, std::byte{2});
    ASSERT_TRUE(begin(step));
    next_forward();
    optimizer();
    while (capture_.is_under_way()) std::this_thread::yield();
    if (!is_even()) continue;
    ++whole;
    ASSERT_TRUE(has_what_was_captured()) << "step " << step;
  }
  is_over = true;
  helper.join();
  EXPECT_GT(whole, 0u);
}

TEST_F(GpuCaptureTest, FailuresOfTheCopierSkipTheStepWithItsWords) {
  for (const std::string function : {"enqueue", "gate", "is_copied"}) {
    ends_.clear();
    copier_.fail_next(function);
    ASSERT_TRUE(begin(1));
    capture_.serve();
    optimizer();
    serve_until_ended();
    ASSERT_EQ(ends_.size(), 1u) << function;
    EXPECT_FALSE(ends_[0].is_complete) << function;
    EXPECT_NE(ends_[0].text.find(function), std::string::npos) << ends_[0].text;
  }
  copier_.fail_next("begin");
  EXPECT_FALSE(begin(2));
  EXPECT_FALSE(capture_.is_under_way());
  EXPECT_FALSE(is_even());
}

TEST_F(GpuCaptureTest, TheNextCaptureGoesOnWhereACancelledOneEnded) {
  ASSERT_TRUE(begin(1));
  capture_.cancel(SkipCause::kFailed, "the agent is gone");
  serve_until_ended();
  EXPECT_EQ(only_end().text, "the agent is gone");
  ends_.clear();
  ASSERT_TRUE(begin(2));
  capture_.serve();
  serve_until_ended();
  EXPECT_TRUE(only_end().is_complete);
  EXPECT_TRUE(is_even());
  EXPECT_TRUE(has_what_was_captured());
}

TEST(CaptureLayout, RangesThatCannotBeAreRefusedByNumber) {
  const std::vector<std::byte> header(8);
  const auto error = [&](const std::vector<CaptureRange>& ranges) {
    const auto layout = CaptureLayout::make(1, header, ranges);
    return layout ? std::string() : layout.error().message;
  };
  EXPECT_EQ(error({{8, 4, 16, -1, false}, {12, 4, 32, -1, false}}), "");
  EXPECT_NE(error({{8, 4, 16, -1, false}, {10, 4, 32, -1, false}}).find("range 1 overlaps"), std::string::npos);
  EXPECT_NE(error({{4, 4, 16, -1, false}}).find("range 0 lies within the header"), std::string::npos);
  EXPECT_NE(error({{8, 4, 0, -1, false}}).find("no address"), std::string::npos);
  EXPECT_NE(error({{~0ull - 2, 8, 16, -1, false}}).find("beyond"), std::string::npos);
  EXPECT_EQ(error({{0, 0, 0, -1, false}}), "");
}

TEST(CopyBatches, CoverEachByteOnce) {
  std::vector<HostCopyRange> ranges;
  std::size_t total = 0;
  for (const std::size_t bytes : {10u, 0u, 90u, 1000u, 5u, 100u, 250u}) {
    ranges.push_back({nullptr, nullptr, bytes});
    total += bytes;
  }
  std::size_t covered = 0;
  for (const CopyBatch& batch : split_into_batches(ranges, 100)) {
    covered += batch.bytes;
    EXPECT_LE(batch.bytes, 100u);
  }
  EXPECT_EQ(covered, total);
}

}  // namespace
}  // namespace smon_rt
