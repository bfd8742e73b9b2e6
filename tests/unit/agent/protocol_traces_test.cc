// The traces of the model (tests/model/golden): the code follows them, and refuses what the rules forbid.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

#include "modelled_job.h"

namespace smon_rt {
namespace {

nlohmann::json traces_of(const std::string& name) {
  std::ifstream file(std::string(SMON_RT_MODEL_TRACES) + "/" + name);
  return nlohmann::json::parse(file).at("traces");
}

TEST(ProtocolTraces, WalksAreFollowedEventByEvent) {
  const nlohmann::json traces = traces_of("walks.json");
  ASSERT_FALSE(traces.empty());
  for (const nlohmann::json& trace : traces) {
    const Replayed replayed = replay(trace);
    EXPECT_EQ(replayed.difference, "");
    EXPECT_TRUE(replayed.is_whole) << trace.at("name");
  }
}

TEST(ProtocolTraces, CounterexamplesAreRefusedWhereTheModelSays) {
  const nlohmann::json traces = traces_of("counterexamples.json");
  int refused = 0;
  for (const nlohmann::json& trace : traces) {
    const Replayed replayed = replay(trace);
    EXPECT_EQ(replayed.difference, "");
    EXPECT_TRUE(replayed.is_whole) << trace.at("name");
    refused += trace.at("refused_at").is_null() ? 0 : 1;
  }
  EXPECT_GE(refused, 7);
}

TEST(ProtocolTraces, ATraceThatIsNotTheCodesIsNoticed) {
  nlohmann::json trace = traces_of("walks.json").at(0);
  trace.at("events").at(0).at("after") = nlohmann::json::object();
  EXPECT_NE(replay(trace).difference, "");
}

}  // namespace
}  // namespace smon_rt
