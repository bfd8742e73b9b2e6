#include <algorithm>
#include <string>
#include <vector>

#include "contract/gpu_copier_fixtures.h"
#include "contract/gpu_copier_gtest.h"

namespace smon_rt::contract {
namespace {

INSTANTIATE_TEST_SUITE_P(Null, GpuCopierContract, testing::ValuesIn(copier_cases<NullGpuCopierFixture>(false)),
                         copier_case_name);
INSTANTIATE_TEST_SUITE_P(Fake, GpuCopierContract, testing::ValuesIn(copier_cases<FakeGpuCopierFixture>()),
                         copier_case_name);

enum class Fault {
  kOpensAnyway,
  kBeginsInAGraph,
  kGatesNothing,
  kGatesWithoutCopies,
  kStagesNothing,
  kIsCopiedAtOnce,
  kCancelsAtOnce,
  kCopiesOneByteLess,
  kWaitHasNoLength,
};

/// The fake with one thing wrong.
class FaultyGpuCopier final : public GpuCopier {
 public:
  FaultyGpuCopier(GpuCopier& copier, Fault fault) : copier_(copier), fault_(fault) {}

  Result<void> open(std::size_t staging_bytes) override {
    auto opened = copier_.open(staging_bytes);
    return fault_ == Fault::kOpensAnyway ? Result<void>{} : opened;
  }
  Result<void> register_host(std::span<std::byte> range) override { return copier_.register_host(range); }
  void unregister_host(std::span<std::byte> range) noexcept override { copier_.unregister_host(range); }
  Result<void> begin(std::uint64_t stream, std::span<const GpuCopyRange> ranges) override {
    unstaged_.clear();
    if (fault_ == Fault::kStagesNothing) {
      unstaged_.assign(ranges.begin(), ranges.end());
      ranges = {};
    }
    auto begun = copier_.begin(stream, ranges);
    return fault_ == Fault::kBeginsInAGraph ? Result<void>{} : begun;
  }
  Result<void> enqueue(std::span<const GpuCopyRange> ranges) override {
    std::vector<GpuCopyRange> all(ranges.begin(), ranges.end());
    all.insert(all.end(), unstaged_.begin(), unstaged_.end());
    if (fault_ == Fault::kCopiesOneByteLess && all.size() > 1) --all.back().bytes;
    return copier_.enqueue(all);
  }
  Result<void> gate(std::uint64_t stream) override {
    auto gated = copier_.gate(stream);
    return fault_ == Fault::kGatesWithoutCopies ? Result<void>{} : gated;
  }
  Result<bool> is_copied() override {
    auto copied = copier_.is_copied();
    return copied && fault_ == Fault::kIsCopiedAtOnce ? Result<bool>{true} : copied;
  }
  std::uint64_t gpu_wait_ns() noexcept override {
    return fault_ == Fault::kWaitHasNoLength ? 0 : copier_.gpu_wait_ns();
  }
  bool cancel(std::int64_t deadline_ns) noexcept override {
    return copier_.cancel(deadline_ns) || fault_ == Fault::kCancelsAtOnce;
  }

 private:
  GpuCopier& copier_;
  Fault fault_;
  std::vector<GpuCopyRange> unstaged_;
};

class FaultyFixture final : public FakeGpuCopierFixture {
 public:
  explicit FaultyFixture(Fault fault) : faulty_(copier_, fault) {
    copier_.set_gates_nothing(fault == Fault::kGatesNothing);
  }
  GpuCopier& copier() override { return faulty_; }

 private:
  FaultyGpuCopier faulty_;
};

std::vector<std::string> checks_that_fail(Fault fault) {
  std::vector<std::string> names;
  for (const GpuCopierCheck& check : gpu_copier_contract()) {
    FaultyFixture fixture(fault);
    Findings findings;
    check.run(fixture, findings);
    if (!findings.lines().empty()) names.emplace_back(check.name);
  }
  return names;
}

void expect_found(Fault fault, const std::string& by) {
  const std::vector<std::string> names = checks_that_fail(fault);
  EXPECT_NE(std::ranges::find(names, by), names.end()) << by;
}

TEST(GpuCopierContractItself, FindsEachPlantedFault) {
  expect_found(Fault::kOpensAnyway, "ItOpensInAContextAlone");
  expect_found(Fault::kBeginsInAGraph, "StreamsThatAreCapturedAreLeftAlone");
  expect_found(Fault::kGatesNothing, "AStreamThatIsGatedWaitsForTheCopies");
  expect_found(Fault::kGatesWithoutCopies, "AGateNeedsEnqueuedCopies");
  expect_found(Fault::kStagesNothing, "NoSnapshotIsTorn");
  expect_found(Fault::kIsCopiedAtOnce, "NothingIsCopiedBeforeItsProducerIsThrough");
  expect_found(Fault::kCancelsAtOnce, "ACancelledCaptureWritesNoMore");
  expect_found(Fault::kCopiesOneByteLess, "RangesOfAnySizeAreCopiedWhole");
  expect_found(Fault::kWaitHasNoLength, "AStreamThatIsGatedWaitsForTheCopies");
}

TEST(FakeGpuCopier, StopsInTheMiddleOfACopyWhereATestCanTearIt) {
  FakeGpu gpu;
  FakeGpuCopier copier(gpu);
  ASSERT_TRUE(copier.open(0));
  constexpr std::size_t kBytes = 4 * FakeGpuCopier::kFakeChunkBytes;
  const std::uint64_t weights = gpu.allocate(kBytes);
  std::vector<std::byte> slot(kBytes, std::byte{9});
  ASSERT_TRUE(copier.begin(1, {}));
  gpu.streams().run();
  const std::vector<GpuCopyRange> ranges{{weights, slot.data(), kBytes}};
  ASSERT_TRUE(copier.enqueue(ranges));
  // The wait, and two chunks.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(gpu.streams().step(FakeGpuCopier::kStream));
  gpu.fill(1, weights, kBytes, std::byte{1});  // nobody gated it
  gpu.streams().run();
  EXPECT_EQ(slot.front(), std::byte{0});
  EXPECT_EQ(slot.back(), std::byte{1});
}

}  // namespace
}  // namespace smon_rt::contract
