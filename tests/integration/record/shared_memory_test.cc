// A /dev/shm that is too small, or not there: smaller rings, then private memory, said in the file.

#include "record_process.h"

namespace smon_rt {
namespace {

class RecordSharedMemoryTest : public RecordTest {
 protected:
  /// Memory as the identity tells it, "skip" where nothing can be mounted.
  std::string record_with_shm(const std::string& options) {
    RecordProcess process({start(), "steps:10", "stop", "exit:6"}, [&] { return mount_tmpfs("/dev/shm", options); });
    const int code = process.exit_code();
    if (code == RecordProcess::kSetUpFailed) return "skip";
    EXPECT_EQ(code, 6);
    const RecordedTrace trace = read_traces(directory_);
    EXPECT_EQ(trace.count(Kind::kForwardCompute), 40u);
    EXPECT_TRUE(trace.damage.empty());
    return trace.identities.empty() ? "" : trace.identities[0].memory;
  }
};

TEST_F(RecordSharedMemoryTest, ATinyOneMeansPrivateMemory) {
  const std::string memory = record_with_shm("size=64k");
  if (memory == "skip") GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_TRUE(memory.starts_with("private")) << memory;
}

TEST_F(RecordSharedMemoryTest, ASmallOneMeansSmallerRings) {
  const std::string memory = record_with_shm("size=1m");
  if (memory == "skip") GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_TRUE(memory.starts_with("tmpfs, smaller rings")) << memory;
}

TEST_F(RecordSharedMemoryTest, AReadOnlyOneMeansPrivateMemory) {
  const std::string memory = record_with_shm("ro");
  if (memory == "skip") GTEST_SKIP() << "mounting a tmpfs needs root";
  EXPECT_TRUE(memory.starts_with("private")) << memory;
}

}  // namespace
}  // namespace smon_rt
