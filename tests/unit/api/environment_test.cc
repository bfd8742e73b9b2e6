#include "api/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

namespace smon_rt {
namespace {

Environment read(const std::map<std::string, std::string>& variables) {
  return read_environment([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

TEST(Environment, SaysNothingWhenNothingIsSet) {
  const Environment environment = read({});
  EXPECT_FALSE(environment.is_disabled);
  EXPECT_FALSE(environment.trace_dir);
  EXPECT_FALSE(environment.sample_ratio);
  EXPECT_FALSE(environment.attempt);
  EXPECT_TRUE(environment.problems.empty());
}

TEST(Environment, ReadsWhatIsSet) {
  const Environment environment = read({{"SMON_RT_TRACE_DIR", "traces"},
                                        {"SMON_RT_SAMPLE_RATIO", "0.25"},
                                        {"SMON_RT_WARMUP_STEPS", "5"},
                                        {"SMON_RT_RUN_ID", "a"},
                                        {"SMON_RT_LOG", "Debug"},
                                        {"RANK", "3"},
                                        {"WORLD_SIZE", "8"},
                                        {"LOCAL_RANK", "1"},
                                        {"TORCHELASTIC_RESTART_COUNT", "2"}});
  EXPECT_EQ(environment.trace_dir, "traces");
  EXPECT_EQ(environment.sample_ratio, 0.25);
  EXPECT_EQ(environment.warmup_steps, 5);
  EXPECT_EQ(environment.run_id, "a");
  EXPECT_EQ(environment.log_level, LogLevel::kDebug);
  EXPECT_EQ(environment.rank, 3);
  EXPECT_EQ(environment.world_size, 8);
  EXPECT_EQ(environment.local_rank, 1);
  EXPECT_EQ(environment.attempt, 2);
}

TEST(Environment, DisablesByAnyWordButNo) {
  for (const char* word : {"1", "true", "yes", "x"}) EXPECT_TRUE(read({{"SMON_RT_DISABLE", word}}).is_disabled) << word;
  for (const char* word : {"", "0", "False", "no", "OFF"}) {
    EXPECT_FALSE(read({{"SMON_RT_DISABLE", word}}).is_disabled) << word;
  }
}

TEST(Environment, AsksForDetailsOfNcclByYesAlone) {
  for (const char* word : {"1", "true", "Yes", "on"}) {
    EXPECT_TRUE(read({{"SMON_RT_NCCL_DETAIL", word}}).nccl_detail) << word;
  }
  for (const char* word : {"", "0", "off"}) {
    const Environment environment = read({{"SMON_RT_NCCL_DETAIL", word}});
    EXPECT_FALSE(environment.nccl_detail) << word;
    EXPECT_TRUE(environment.problems.empty()) << word;
  }
  const Environment in_doubt = read({{"SMON_RT_NCCL_DETAIL", "maybe"}});
  EXPECT_FALSE(in_doubt.nccl_detail);
  ASSERT_EQ(in_doubt.problems.size(), 1u);
  EXPECT_EQ(in_doubt.problems[0], "SMON_RT_NCCL_DETAIL=maybe is ignored: it must be 1 or 0");
}

TEST(Environment, APluginBehindOursHasAName) {
  for (const char* word : {"", "0", "1"}) {
    ::setenv("SMON_RT_NCCL_CHAIN", word, 1);
    EXPECT_EQ(nccl_chain_name(), "") << "Python puts a name in the place of 1";
  }
  ::setenv("SMON_RT_NCCL_CHAIN", "example", 1);
  EXPECT_EQ(nccl_chain_name(), "example");
  ::unsetenv("SMON_RT_NCCL_CHAIN");
}

TEST(Environment, TakesTheElasticRunUnlessItIsNone) {
  EXPECT_EQ(read({{"TORCHELASTIC_RUN_ID", "job"}}).run_id, "job");
  EXPECT_FALSE(read({{"TORCHELASTIC_RUN_ID", "none"}}).run_id);
  EXPECT_EQ(read({{"TORCHELASTIC_RUN_ID", "job"}, {"SMON_RT_RUN_ID", "mine"}}).run_id, "mine");
}

TEST(Environment, IgnoresAndNamesWhatItDoesNotUnderstand) {
  const Environment environment = read({{"SMON_RT_SAMPLE_RATIO", "10%"},
                                        {"SMON_RT_WARMUP_STEPS", "-1"},
                                        {"SMON_RT_LOG", "loud"},
                                        {"WORLD_SIZE", "0"},
                                        {"RANK", "99999999999"}});
  EXPECT_FALSE(environment.sample_ratio);
  EXPECT_FALSE(environment.warmup_steps);
  EXPECT_FALSE(environment.log_level);
  EXPECT_FALSE(environment.world_size);
  EXPECT_FALSE(environment.rank);
  ASSERT_EQ(environment.problems.size(), 5u);
  EXPECT_EQ(environment.problems[0], "SMON_RT_SAMPLE_RATIO=10% is ignored: it must be a number from 0 to 1");
  EXPECT_EQ(environment.problems[1], "SMON_RT_WARMUP_STEPS=-1 is ignored: it must be a number, 0 or more");
  EXPECT_EQ(environment.problems[2], "SMON_RT_LOG=loud is ignored: it must be one of off, error, warning, info, debug");
  EXPECT_FALSE(read({{"SMON_RT_SAMPLE_RATIO", "nan"}}).sample_ratio);
}

TEST(Environment, TheLibraryThatNcclWasToldToLoadIsKnownByDeviceAndInodeInThisProcessAlone) {
  EXPECT_EQ(parse_nccl_instance("4711:65024:1234567", 4711), (NcclInstance{65024, 1234567}));
  EXPECT_EQ(parse_nccl_instance("4711:18446744073709551615:0", 4711), (NcclInstance{~std::uint64_t{0}, 0}));
  EXPECT_FALSE(parse_nccl_instance("4711:65024:1234567", 4712)) << "set by the parent";
  for (const char* text : {"", "4711", "4711:", "4711:1", "4711:1:", "4711:1:2:", "4711:1:2x", "4711:x:2", ":1:2",
                           "-4711:1:2", "4711:1:99999999999999999999"}) {
    EXPECT_FALSE(parse_nccl_instance(text, 4711)) << text;
  }
  EXPECT_FALSE(parse_nccl_instance(nullptr, 4711));
}

}  // namespace
}  // namespace smon_rt
