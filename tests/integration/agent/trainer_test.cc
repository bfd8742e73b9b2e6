// A trainer's Checkpoint against the real agent: steps become agreed, and outlive the trainer, the agent and changes of
// the layout; an agent that is dead or stands still costs steps, never time.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/agent_folder.h"
#include "checkpoint/checkpoint.h"

namespace smon_rt {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;

constexpr std::size_t kHeaderBytes = 4096;

class TrainerTest : public ::testing::Test {
 protected:
  TrainerTest() {
    std::string name = (std::filesystem::temp_directory_path() / "trainer_test_XXXXXX").string();
    base_ = ::mkdtemp(name.data());
  }
  ~TrainerTest() override {
    if (agent_pid_ > 0) ::kill(agent_pid_, SIGKILL);
    if (checkpoint_ != nullptr) checkpoint_->close(false);
    std::filesystem::remove_all(base_);
  }

  CheckpointOptions options(const std::string& program = SMON_AGENT_PROGRAM) const {
    CheckpointOptions options;
    auto& hello = options.client.hello;
    hello.run_id = "run";
    hello.world_size = 1;
    hello.owner = "rank=0";
    hello.topology = "world 1";
    hello.attempt = "attempt " + std::to_string(attempt_);
    hello.every = 1;
    hello.own_slots = 2;
    hello.pid = ::getpid();
    hello.agent_ttl_s = 60;
    options.client.folder = agent_folder_path(base_, ::geteuid(), "run", "");
    options.client.program = program;
    options.client.retry_interval = milliseconds(20);
    options.timeout = seconds(20);
    return options;
  }

  /// As a new process would begin; gives back the state that it goes on from.
  Label start() {
    ++attempt_;
    checkpoint_ = std::make_unique<Checkpoint>(options(), std::make_unique<NullGpuCopier>());
    const auto welcome = checkpoint_->open();
    if (!welcome) {
      ADD_FAILURE() << welcome.error().message;
      return {};
    }
    agent_pid_ = welcome->pid;
    const std::uint32_t incarnation = welcome->incarnation + 1;
    EXPECT_TRUE(checkpoint_->fence(incarnation));
    Label newest = kInitialState;
    const auto copies = checkpoint_->list();
    for (const auto& each : copies.value_or(std::vector<agent_messages::HeldCopy>())) {
      if (each.is_intact && each.reason.empty()) newest = std::max(newest, each.label);
    }
    EXPECT_TRUE(checkpoint_->pin(newest, {}));
    if (newest != kInitialState) {
      const auto content = checkpoint_->fetch(newest, agent_messages::Tier::kMemory);
      EXPECT_TRUE(content) << content.error().message;
      if (content) restored_.assign(content->begin(), content->end());
      checkpoint_->release();
    }
    set_layout(weights_.size());
    EXPECT_TRUE(checkpoint_->go_on(incarnation, newest.step + 1));
    step_ = newest.step;
    return newest;
  }

  void set_layout(std::size_t bytes) {
    weights_.resize(bytes);
    const std::vector<std::byte> header(kHeaderBytes, std::byte{' '});
    const std::vector<CaptureRange> ranges{
        {kHeaderBytes, bytes, reinterpret_cast<std::uint64_t>(weights_.data()), -1, false}};
    const auto set = checkpoint_->set_layout(header, ranges);
    ASSERT_TRUE(set) << set.error().message;
  }

  /// One iteration: update, then capture.
  CaptureResult train() {
    ++step_;
    const auto before = steady_clock::now();
    checkpoint_->before_update(0);
    blocked_ += steady_clock::now() - before;
    std::ranges::fill(weights_, static_cast<std::byte>(step_));
    const auto after = steady_clock::now();
    const CaptureResult result = checkpoint_->capture(step_, {}, 0);
    blocked_ += steady_clock::now() - after;
    return result;
  }

  /// Trains until the agent says that a newer step than `than` is agreed.
  ::testing::AssertionResult train_until_agreed(Label than) {
    const auto deadline = steady_clock::now() + seconds(30);
    while (steady_clock::now() < deadline) {
      train();
      std::this_thread::sleep_for(milliseconds(2));
      const auto agreed = checkpoint_->status().agreed;
      if (agreed && *agreed > than) return ::testing::AssertionSuccess();
    }
    const CheckpointStatus status = checkpoint_->status();
    return ::testing::AssertionFailure() << "skips " << status.skips << ", " << status.last_skip << ", "
                                         << status.error;
  }

  Label agreed() { return checkpoint_->status().agreed.value_or(kInitialState); }
  bool is_restored_whole(Label label) const {
    return restored_.size() == kHeaderBytes + weights_.size() &&
           std::ranges::all_of(restored_.begin() + kHeaderBytes, restored_.end(),
                               [&](std::byte each) { return each == static_cast<std::byte>(label.step); });
  }

  std::string base_;
  int attempt_ = 0;
  std::int32_t agent_pid_ = 0;
  std::uint64_t step_ = 0;
  std::chrono::nanoseconds blocked_{};  // the training thread was
  std::vector<std::byte> weights_ = std::vector<std::byte>(3'000'000);
  std::vector<std::byte> restored_;
  std::unique_ptr<Checkpoint> checkpoint_;
};

TEST_F(TrainerTest, TheNewestAgreedStepIsThereForTheNextTrainer) {
  EXPECT_EQ(start(), kInitialState);
  ASSERT_TRUE(train_until_agreed({1, 5}));
  const Label before = agreed();
  ASSERT_TRUE(checkpoint_->close(false));

  const Label found = start();
  EXPECT_GE(found, before);
  EXPECT_TRUE(is_restored_whole(found));
  ASSERT_TRUE(train_until_agreed(found));
  EXPECT_EQ(agreed().incarnation, found.incarnation + 1);
}

TEST_F(TrainerTest, AnAgentThatIsKilledIsStartedAnewAndGetsTheSlotsBack) {
  start();
  ASSERT_TRUE(train_until_agreed({1, 3}));
  const Label before = agreed();
  ASSERT_EQ(::kill(agent_pid_, SIGKILL), 0);
  ASSERT_TRUE(train_until_agreed(before));
  EXPECT_EQ(agreed().incarnation, before.incarnation);
  const Label newest = agreed();
  ASSERT_TRUE(checkpoint_->close(false));
  const Label found = start();
  EXPECT_GE(found, newest);
  EXPECT_TRUE(is_restored_whole(found));
}

TEST_F(TrainerTest, AChangedLayoutGetsNewSlotsWhileTrainingGoesOn) {
  start();
  ASSERT_TRUE(train_until_agreed({1, 3}));
  const Label before = {1, step_};
  checkpoint_->before_update(0);
  set_layout(5'000'000);
  ASSERT_TRUE(train_until_agreed(before));
  ASSERT_TRUE(checkpoint_->close(false));
  const Label found = start();
  EXPECT_GT(found, before);
  EXPECT_TRUE(is_restored_whole(found));
}

TEST_F(TrainerTest, AnAgentThatStandsStillCostsStepsAndNoTime) {
  start();
  ASSERT_TRUE(train_until_agreed({1, 3}));
  ASSERT_EQ(::kill(agent_pid_, SIGSTOP), 0);
  std::size_t skipped = 0;
  blocked_ = {};
  for (int i = 0; i < 200; ++i) skipped += train() == CaptureResult::kSkipped ? 1 : 0;
  EXPECT_LT(blocked_, seconds(2));  // by the copies of two slots, and what else the machine does
  EXPECT_GE(skipped, 190u);
  const Label before = {1, step_};
  ASSERT_EQ(::kill(agent_pid_, SIGCONT), 0);
  EXPECT_TRUE(train_until_agreed(before));
}

TEST_F(TrainerTest, WithoutAnAgentOpeningFailsInOneLine) {
  CheckpointOptions no_program = options("/nowhere/smon-agent");
  no_program.timeout = milliseconds(300);
  Checkpoint checkpoint(no_program, std::make_unique<NullGpuCopier>());
  const auto opened = checkpoint.open();
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("/nowhere/smon-agent"), std::string::npos) << opened.error().message;
  EXPECT_EQ(opened.error().message.find('\n'), std::string::npos);
  EXPECT_EQ(checkpoint.capture(1, {}, 0), CaptureResult::kSkipped);
  EXPECT_TRUE(checkpoint.close(false));
}

}  // namespace
}  // namespace smon_rt
