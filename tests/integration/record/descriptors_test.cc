// Jobs that close descriptors they did not open, and use the numbers for their own files.

#include <cstddef>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "record_process.h"

namespace smon_rt {
namespace {

using RecordDescriptorsTest = RecordTest;

TEST_F(RecordDescriptorsTest, AJobThatClosesOursKeepsItsOwnFiles) {
  const std::string own = (directory_ / "own.txt").string();
  RecordProcess process({start(), "steps:10", "sync", "take_descriptors:" + own, "steps:10", "file_error", "spans:5000",
                         "status", "stop", "check_descriptors:" + own});
  const std::string status = process.read_line_with("started=");
  EXPECT_EQ(number_in(status, "file_error"), 1) << status;
  EXPECT_TRUE(process.read_line().starts_with("stop="));
  EXPECT_EQ(process.read_line(), "intact=1 closed=200");
  EXPECT_EQ(process.exit_code(), 0);
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.count(Kind::kForwardCompute), 40u) << "what was written before";
  EXPECT_TRUE(trace.damage.empty());
  EXPECT_TRUE(arenas_of(run_id_).empty());
}

TEST_F(RecordDescriptorsTest, TheLastPacketDoesNotGoIntoAFileOfTheJob) {
  const std::string own = (directory_ / "own.txt").string();
  RecordProcess process({start(), "steps:10", "sync", "take_descriptors:" + own, "stop", "check_descriptors:" + own});
  EXPECT_EQ(process.read_line(), "start=0");
  EXPECT_TRUE(process.read_line().starts_with("stop="));
  EXPECT_EQ(process.read_line(), "intact=1 closed=200");
}

TEST_F(RecordDescriptorsTest, WhatTheJobPrintsDoesNotGoIntoTheTrace) {
  constexpr int kRecordings = 20;
  std::vector<std::string> arguments = {"close_standard", "print"};
  for (int i = 0; i < kRecordings; ++i) {
    // An arena, a trace, a snapshot and a request are opened.
    arguments.insert(arguments.end(), {start(), "request:1000+1", "steps:10", "stop"});
  }
  arguments.insert(arguments.end(), {start(), "steps:10", "sync", "check_standard", "stop", "exit:6"});
  RecordProcess process(std::move(arguments));
  EXPECT_EQ(process.exit_code(), 6) << "98: a file took what was printed; 97: a descriptor stayed";
  const RecordedTrace trace = read_traces(directory_);
  EXPECT_EQ(trace.files, std::size_t{kRecordings + 1});
  EXPECT_EQ(trace.ends.size(), trace.files);
  EXPECT_EQ(trace.count(Kind::kForwardCompute), 40u * trace.files);
  EXPECT_TRUE(trace.damage.empty());
}

}  // namespace
}  // namespace smon_rt
