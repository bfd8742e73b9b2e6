// Trace files of earlier versions read as what they were written from, for ever.

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "trace_json.h"

namespace smon_rt {
namespace {

std::string contents_of(const std::string& name) {
  std::ifstream file(SMON_COMPAT_DIR "/" + name, std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

TEST(TraceCompat, TheFirstFileReadsAsItWasWritten) {
  const std::string trace = contents_of("first.smon");
  ASSERT_GT(trace.size(), 1000U);
  EXPECT_EQ(test::trace_json(trace), contents_of("first.json"));
}

}  // namespace
}  // namespace smon_rt
