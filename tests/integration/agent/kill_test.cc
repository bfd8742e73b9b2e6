// kill -9 of trainers at random moments, in training and in restarts: nothing agreed is lost, what comes back is one
// step of all ranks, bit for bit.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

#include "killed_job.h"

namespace smon_rt {
namespace {

TEST(CheckpointKill, NothingAgreedIsLostWhenTrainersAreKilled) {
  std::string folder = (std::filesystem::temp_directory_path() / "smon_kill_XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    KilledJob job(folder, 1);
    for (int kill = 0; kill < SMON_TEST_KILLS; ++kill) {
      ASSERT_TRUE(job.run_and_kill()) << "kill " << kill << ": " << job.failure();
    }
    ASSERT_TRUE(job.run_to_end()) << job.failure();
    const KilledJob::Store& store = job.store();
    std::cout << SMON_TEST_KILLS << " kills: " << store.restores << " restarts came to train, the last from step "
              << store.restored_step << "; " << store.captures << " captures, " << store.skips << " skips\n";
    // Checkpoints went on all the while: most attempts agreed on something.
    EXPECT_GT(store.restores, SMON_TEST_KILLS / 2);
    EXPECT_GT(store.restored_step, SMON_TEST_KILLS / 4);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace smon_rt
