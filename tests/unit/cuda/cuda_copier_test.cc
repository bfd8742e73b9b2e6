#include "cuda/cuda_copier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "contract/gpu_copier_gtest.h"
#include "fakes/fake_copier_fixture.h"

namespace smon_rt::contract {
namespace {

INSTANTIATE_TEST_SUITE_P(Cuda, GpuCopierContract, testing::ValuesIn(copier_cases<FakeCudaCopierFixture>()),
                         copier_case_name);

constexpr int kBroken = 700;  // of cuda.h: an illegal address, after which every call fails

class CudaCopierTest : public testing::Test {
 protected:
  void open(std::size_t staging_bytes = 1024) {
    fixture_.enter_context();
    const auto opened = copier().open(staging_bytes);
    ASSERT_TRUE(opened) << opened.error().message;
  }
  GpuCopier& copier() { return fixture_.copier(); }

  FakeCudaCopierFixture fixture_;
  std::vector<std::byte> slot_ = std::vector<std::byte>(1000);
};

TEST_F(CudaCopierTest, WhatTheGpuDoesNotGiveIsSaidAndTheRestGivenBack) {
  fixture_.enter_context();
  const auto opened = copier().open(std::size_t{1} << 40);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().message, "the GPU has no 1099511627776 bytes to stage in: the driver says 2");
  EXPECT_EQ(fake_cuda_calls("cuEventCreate"), fake_cuda_calls("cuEventDestroy"));
  EXPECT_EQ(fake_cuda_calls("cuStreamDestroy"), 1);
  open();
}

TEST_F(CudaCopierTest, HostMemoryIsPageLockedInPiecesAndNoneStaysWhereOneFails) {
  open();
  ASSERT_TRUE(copier().register_host(slot_));
  EXPECT_EQ(fake_cuda_calls("cuMemHostRegister"), 10);
  EXPECT_EQ(fake_cuda_registered_bytes(), slot_.size());
  copier().unregister_host(slot_);
  EXPECT_EQ(fake_cuda_registered_bytes(), 0u);

  const std::span<std::byte> range(slot_);
  ASSERT_TRUE(copier().register_host(range.subspan(300, 100)));
  const auto again = copier().register_host(range);  // its fourth piece is page-locked already
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message, "host memory cannot be page-locked, copies are slower: the driver says 712");
  EXPECT_EQ(fake_cuda_registered_bytes(), 100u) << "what others page-locked stays";
}

TEST_F(CudaCopierTest, ACopyReachesIntoNoPageLockedPieceFromOutside) {
  open();
  ASSERT_TRUE(copier().register_host(std::span(slot_).subspan(30, 100)));
  const std::uint64_t weights = fixture_.allocate(slot_.size());
  fixture_.fill(fixture_.stream(0), weights, slot_.size(), std::byte{5});
  ASSERT_TRUE(copier().begin(fixture_.stream(0), {}));
  const std::vector<GpuCopyRange> ranges{{weights, slot_.data(), slot_.size()}};
  const auto enqueued = copier().enqueue(ranges);
  ASSERT_TRUE(enqueued) << enqueued.error().message;
  fixture_.synchronize();
  EXPECT_EQ(std::ranges::count(slot_, std::byte{5}), static_cast<std::ptrdiff_t>(slot_.size()));
}

TEST_F(CudaCopierTest, ACopyThatFailsGivesTheCaptureUp) {
  open();
  const std::uint64_t weights = fixture_.allocate(slot_.size());
  ASSERT_TRUE(copier().begin(fixture_.stream(0), {}));
  const std::vector<GpuCopyRange> ranges{{weights, slot_.data(), 100}, {weights + 5000, slot_.data(), 1}};
  const auto enqueued = copier().enqueue(ranges);
  ASSERT_FALSE(enqueued);
  EXPECT_EQ(enqueued.error().message, "copies cannot be enqueued: the driver says 1");
  EXPECT_FALSE(copier().gate(fixture_.stream(0)));
  EXPECT_FALSE(copier().is_copied());
  EXPECT_FALSE(copier().cancel(0)) << "the first copy may be under way";
  fixture_.synchronize();
  EXPECT_TRUE(copier().cancel(0));
}

TEST_F(CudaCopierTest, AnEventThatIsNotRecordedIsNotTakenForTheLastOnes) {
  open();
  ASSERT_TRUE(copier().begin(fixture_.stream(0), {}));
  ASSERT_TRUE(copier().enqueue({}));
  fixture_.synchronize();
  ASSERT_TRUE(copier().begin(fixture_.stream(0), {}));
  fake_cuda_fail("cuEventRecord", kBroken);
  EXPECT_FALSE(copier().enqueue({}));
  fake_cuda_fail("cuEventRecord", 0);
  EXPECT_FALSE(copier().cancel(0)) << "nobody knows";
  EXPECT_FALSE(copier().begin(fixture_.stream(0), {}));
}

TEST_F(CudaCopierTest, NoErrorOfTheDriverIsMoreThanAnError) {
  for (const char* symbol :
       {"cuCtxPushCurrent", "cuThreadExchangeStreamCaptureMode", "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery",
        "cuStreamWaitEvent", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuEventElapsedTime of 12080"}) {
    FakeCudaCopierFixture fixture;
    fixture.enter_context();
    GpuCopier& copier = fixture.copier();
    ASSERT_TRUE(copier.open(1024));
    const std::vector<GpuCopyRange> ranges{{fixture.allocate(10), slot_.data(), 10}};
    fake_cuda_fail(symbol, kBroken);
    // Everything is called, whatever failed before.
    const bool all_went_well = copier.begin(fixture.stream(0), ranges) && copier.enqueue(ranges) &&
                               copier.gate(fixture.stream(0)) && copier.is_copied() && copier.gpu_wait_ns() > 0;
    EXPECT_FALSE(all_went_well) << symbol;
    EXPECT_EQ(copier.gpu_wait_ns(), 0u) << symbol;
    copier.cancel(0);
  }
}

TEST_F(CudaCopierTest, WhatMayStillBeCopiedIsNotGivenBack) {
  open();
  fixture_.hold(fixture_.stream(0));
  ASSERT_TRUE(copier().begin(fixture_.stream(0), {}));
  ASSERT_TRUE(copier().enqueue({}));
  fixture_.drop_copier();
  EXPECT_EQ(fake_cuda_calls("cuMemFree"), 0);
}

TEST_F(CudaCopierTest, WhatIsNotUsedIsGivenBack) {
  open();
  ASSERT_TRUE(copier().register_host(slot_));
  fixture_.drop_copier();
  EXPECT_EQ(fake_cuda_calls("cuMemFree"), 1);
  EXPECT_EQ(fake_cuda_registered_bytes(), 0u);
}

TEST_F(CudaCopierTest, ACancelReachesAnEnqueueThatIsUnderWay) {
  open();
  const std::uint64_t weights = fixture_.allocate(64);
  const std::vector<GpuCopyRange> ranges(20'000, {weights, slot_.data(), 64});
  for (int round = 0; round < 20; ++round) {
    ASSERT_TRUE(copier().begin(fixture_.stream(0), {}));
    std::atomic<bool> is_through{false};
    std::thread helper([&] {
      static_cast<void>(copier().enqueue(ranges));
      is_through = true;
    });
    // In the middle of it.
    while (fake_cuda_calls("cuMemcpyDtoHAsync") < 100 * (round + 1) && !is_through) std::this_thread::yield();
    bool is_cancelled = false;
    while (!is_cancelled) {
      is_cancelled = copier().cancel(monotonic_ns() + 1'000'000);
      if (is_through) fixture_.synchronize();
    }
    helper.join();
    std::ranges::fill(slot_, std::byte{7});
    fixture_.synchronize();
    EXPECT_EQ(slot_[0], std::byte{7}) << "a cancelled capture wrote";
  }
  EXPECT_LT(fake_cuda_calls("cuMemcpyDtoHAsync"), 20 * 20'000) << "no cancel came in the middle";
}

}  // namespace
}  // namespace smon_rt::contract
