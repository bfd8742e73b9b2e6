// The disk's thread: what a slow, full or hanging disk does to the rest (nothing).
#include "agent/disk_tier.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "agent/content_hash.h"

namespace smon_rt {
namespace {

using namespace std::chrono_literals;

/// The owner's event loop, of which a test runs one event after the other.
class Events {
 public:
  DiskTier::Post post() {
    return [this](std::function<void()> event) {
      const std::lock_guard lock(mutex_);
      events_.push_back(std::move(event));
      changed_.notify_all();
    };
  }
  bool run_one() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, 30s, [this] { return !events_.empty(); })) return false;
    const auto event = std::move(events_.front());
    events_.pop_front();
    lock.unlock();
    event();
    return true;
  }
  std::size_t count() {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> events_;
};

/// A disk whose writes hang while it is shut. Outlives the test: a hanging thread may be left behind.
struct Gate {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = true;
  std::size_t waiting = 0;
  std::atomic<int> error_number{0};

  void set(bool open) {
    const std::lock_guard lock(mutex);
    is_open = open;
    changed.notify_all();
  }
  void pass() {
    std::unique_lock lock(mutex);
    ++waiting;
    changed.notify_all();
    changed.wait(lock, [this] { return is_open; });
    --waiting;
  }
  bool wait_for_waiting() {
    std::unique_lock lock(mutex);
    return changed.wait_for(lock, 30s, [this] { return waiting > 0; });
  }
};

class DiskTierTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "smon_rt-tier-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override {
    gate_->set(true);
    std::filesystem::remove_all(directory_);
  }

  DiskStore store() const {
    DiskCalls calls = DiskCalls::of_system();
    calls.write = [gate = gate_](int fd, const void* data, std::size_t bytes) -> ssize_t {
      gate->pass();
      errno = gate->error_number;
      return gate->error_number != 0 ? -1 : ::write(fd, data, bytes);
    };
    return {directory_, "job", calls};
  }
  static DiskSource source_of(char value, std::size_t bytes = 10'000) {
    auto memory = SlotMemory::make(bytes);
    EXPECT_TRUE(memory);
    const std::string content(bytes, value);
    EXPECT_EQ(::pwrite((*memory)->fd(), content.data(), bytes, kContentOffset), static_cast<ssize_t>(bytes));
    std::vector<std::uint64_t> hashes(chunk_count(bytes));
    return {"dp=0", "world 1", *memory, hash_content((*memory)->content(), hashes)};
  }
  bool write(DiskTier& tier, Label label, const DiskSource& source) {
    return tier.write(
        label, {source}, [this] { ++staged_; }, [this](const Result<void>& result) { written_.push_back(result); });
  }
  /// Staged, then written.
  void finish() {
    ASSERT_TRUE(events_.run_one());
    ASSERT_TRUE(events_.run_one());
  }

  std::string directory_;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  Events events_;
  int staged_ = 0;
  std::vector<Result<void>> written_;
};

TEST_F(DiskTierTest, AStepThatIsWrittenIsDurableListedAndLoaded) {
  DiskTier tier(store(), {}, events_.post());
  ASSERT_TRUE(write(tier, {1, 5}, source_of('a')));
  finish();
  ASSERT_EQ(written_.size(), 1U);
  ASSERT_TRUE(written_[0]) << written_[0].error().message;
  const DiskTierStatus status = tier.status(DiskTier::Clock::now());
  EXPECT_EQ(status.durable, (Label{1, 5}));
  EXPECT_EQ(status.written_bytes, 10'000U);
  EXPECT_EQ(status.error, "");

  std::size_t listed = 0;
  char first = 0;
  tier.list([&](const Result<DiskListing>& listing) { listed = listing ? listing->steps.size() : 0; });
  tier.load("dp=0", {1, 5}, [&](const Result<std::shared_ptr<SlotMemory>>& loaded) {
    if (loaded) first = static_cast<char>((*loaded)->content()[0]);
  });
  finish();
  EXPECT_EQ(listed, 1U);
  EXPECT_EQ(first, 'a');
}

TEST_F(DiskTierTest, AHangingDiskHoldsNoSlotMissesStepsAndIsTold) {
  DiskTier tier(store(), {}, events_.post());
  gate_->set(false);
  DiskSource source = source_of('a');
  const std::weak_ptr<SlotMemory> slot = source.memory;
  ASSERT_TRUE(write(tier, {1, 5}, source));
  source.memory.reset();
  ASSERT_TRUE(events_.run_one());
  EXPECT_EQ(staged_, 1);
  ASSERT_TRUE(gate_->wait_for_waiting());
  EXPECT_TRUE(slot.expired()) << "what is written is a copy";
  EXPECT_FALSE(write(tier, {1, 10}, source_of('b')));
  const auto now = DiskTier::Clock::now();
  EXPECT_EQ(tier.status(now).missed_steps, 1U);
  EXPECT_EQ(tier.status(now).error, "");
  EXPECT_NE(tier.status(now + 2min).error.find("hangs: writing step 5"), std::string::npos);

  gate_->set(true);
  ASSERT_TRUE(events_.run_one());
  EXPECT_EQ(tier.status(now + 2min).durable, (Label{1, 5}));
  ASSERT_TRUE(write(tier, {1, 15}, source_of('c')));
  finish();
  EXPECT_EQ(tier.status(now).durable, (Label{1, 15}));
}

TEST_F(DiskTierTest, EndsInTimeWhileTheDiskHangsAndTellsNothingAfterwards) {
  DiskTierOptions options;
  options.end_within = 50ms;
  {
    DiskTier tier(store(), options, events_.post());
    gate_->set(false);
    ASSERT_TRUE(write(tier, {1, 5}, source_of('a')));
    ASSERT_TRUE(events_.run_one());
    ASSERT_TRUE(gate_->wait_for_waiting());
  }
  // The thread that was left alone ends once the disk answers: its copy of the gate goes with it.
  gate_->set(true);
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  while (gate_.use_count() > 1 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(gate_.use_count(), 1);
  EXPECT_EQ(events_.count(), 0U);
}

TEST_F(DiskTierTest, AFullDiskIsSaidAndTheNextStepTriesAgain) {
  DiskTier tier(store(), {}, events_.post());
  gate_->error_number = ENOSPC;
  ASSERT_TRUE(write(tier, {1, 5}, source_of('a')));
  finish();
  EXPECT_NE(tier.status(DiskTier::Clock::now()).error.find("No space left"), std::string::npos);
  EXPECT_EQ(tier.status(DiskTier::Clock::now()).durable, kInitialState);
  gate_->error_number = 0;
  ASSERT_TRUE(write(tier, {1, 10}, source_of('a')));
  finish();
  EXPECT_EQ(tier.status(DiskTier::Clock::now()).error, "");
  EXPECT_EQ(tier.status(DiskTier::Clock::now()).durable, (Label{1, 10}));
}

TEST_F(DiskTierTest, ASlotThatWasUsedAgainTooSoonIsNotWritten) {
  DiskTier tier(store(), {}, events_.post());
  DiskSource source = source_of('a');
  ASSERT_EQ(::pwrite(source.memory->fd(), "b", 1, kContentOffset + 7), 1);
  ASSERT_TRUE(write(tier, {1, 5}, source));
  finish();
  ASSERT_EQ(written_.size(), 1U);
  EXPECT_FALSE(written_[0]);
}

TEST_F(DiskTierTest, MemoryThatMayNotBeTakenIsSaidAndOnlyAskedForOnce) {
  DiskTierOptions options;
  std::atomic<bool> is_refused = true;
  std::atomic<int> asked = 0;
  options.check_budget = [&](std::uint64_t bytes) -> Result<void> {
    ++asked;
    if (is_refused) return Error{"no room for " + std::to_string(bytes)};
    return {};
  };
  DiskTier tier(store(), options, events_.post());
  ASSERT_TRUE(write(tier, {1, 5}, source_of('a')));
  finish();
  EXPECT_NE(tier.status(DiskTier::Clock::now()).error.find("no room"), std::string::npos);
  is_refused = false;
  for (const std::uint64_t step : {10U, 15U, 20U}) {
    ASSERT_TRUE(write(tier, {1, step}, source_of('a')));
    finish();
  }
  EXPECT_EQ(asked, 2);
  EXPECT_EQ(tier.status(DiskTier::Clock::now()).durable, (Label{1, 20}));
}

TEST_F(DiskTierTest, AStepIsDurableEvenIfOldOnesCannotBeRemoved) {
  DiskTierOptions options;
  options.keep = 1;
  DiskTier tier(store(), options, events_.post());
  ASSERT_TRUE(write(tier, {1, 5}, source_of('a')));
  finish();
  // A folder in place of the manifest of a step that is to go: it cannot be unlinked.
  std::filesystem::create_directories(store().folder() + "/step-1-4/manifest.json");
  ASSERT_TRUE(write(tier, {1, 10}, source_of('a')));
  finish();
  ASSERT_EQ(written_.size(), 2U);
  EXPECT_TRUE(written_[1]);
  EXPECT_EQ(tier.status(DiskTier::Clock::now()).durable, (Label{1, 10}));
  EXPECT_NE(tier.status(DiskTier::Clock::now()).error.find("step-1-4"), std::string::npos);
}

TEST_F(DiskTierTest, KeepsAsManyStepsAsAsked) {
  DiskTierOptions options;
  options.keep = 2;
  DiskTier tier(store(), options, events_.post());
  for (const std::uint64_t step : {5U, 10U, 15U}) {
    ASSERT_TRUE(write(tier, {1, step}, source_of('a')));
    finish();
  }
  const auto listing = store().list();
  ASSERT_TRUE(listing);
  ASSERT_EQ(listing->steps.size(), 2U);
  EXPECT_EQ(listing->steps[0].label, (Label{1, 10}));
}

}  // namespace
}  // namespace smon_rt
