// Where an agent's folder is, and which folders are none.

#include "checkpoint/agent_folder.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

namespace smon_rt {
namespace {

class AgentFolderTest : public ::testing::Test {
 protected:
  AgentFolderTest() {
    std::string name = (std::filesystem::temp_directory_path() / "agent_folder_XXXXXX").string();
    base_ = ::mkdtemp(name.data());
  }
  ~AgentFolderTest() override { std::filesystem::remove_all(base_); }

  std::string path(const std::string& run = "run") const { return agent_folder_path(base_, ::geteuid(), run, ""); }

  std::string base_;
};

TEST(AgentFolderPath, KeepsPlainRunIdsAndTellsOthersApartByAHash) {
  EXPECT_EQ(agent_folder_path("/tmp", 7, "job-1.a_B", ""), "/tmp/smon_rt-7/job-1.a_B");
  EXPECT_EQ(agent_folder_path("/tmp", 7, "job", "n1"), "/tmp/smon_rt-7/job-n1");
  const std::string slash = agent_folder_path("/tmp", 7, "a/b", "");
  EXPECT_EQ(slash.rfind("/tmp/smon_rt-7/a_b-", 0), 0u);
  EXPECT_NE(slash, agent_folder_path("/tmp", 7, "a:b", ""));
  const std::string up = agent_folder_path("/tmp", 7, "..", "");
  EXPECT_EQ(up.find("/.."), std::string::npos);
  const std::string is_long = agent_folder_path("/tmp", 7, std::string(300, 'x'), "");
  EXPECT_LT(is_long.size(), 110u);
  EXPECT_NE(is_long, agent_folder_path("/tmp", 7, std::string(301, 'x'), ""));
}

TEST_F(AgentFolderTest, IsMadeForItsUserAlone) {
  ASSERT_FALSE(AgentFolder::open(path()));
  ASSERT_TRUE(AgentFolder::make(path()));
  struct stat status{};
  ASSERT_EQ(::stat(path().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  EXPECT_TRUE(AgentFolder::make(path()));
  EXPECT_TRUE(AgentFolder::open(path()));
}

TEST_F(AgentFolderTest, ALinkOrAFolderOpenToOthersIsRefusedInOneLine) {
  ASSERT_TRUE(AgentFolder::make(path()));
  std::filesystem::create_directory_symlink(path(), path("link"));
  const auto link = AgentFolder::make(path("link"));
  ASSERT_FALSE(link);
  EXPECT_NE(link.error().message.find("link"), std::string::npos);
  ASSERT_EQ(::chmod(path().c_str(), 0750), 0);
  const auto open_to_others = AgentFolder::open(path());
  ASSERT_FALSE(open_to_others);
  EXPECT_NE(open_to_others.error().message.find("chmod 0700"), std::string::npos);
  EXPECT_EQ(open_to_others.error().message.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace smon_rt
