#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "contract/gpu_timer_contract.h"

// The contract of GpuTimer as tests, one a check:
//   INSTANTIATE_TEST_SUITE_P(Fake, GpuTimerContract, testing::ValuesIn(contract_cases<FakeFixture>()), case_name);
// contract_cases<Fixture>(false) leaves out what a timer that never gives an event cannot do.

namespace smon_rt::contract {

struct ContractCase {
  const GpuTimerCheck* check;
  std::unique_ptr<GpuTimerFixture> (*make_fixture)();

  friend std::ostream& operator<<(std::ostream& out, const ContractCase& one) { return out << one.check->name; }
};

template <typename Fixture>
std::vector<ContractCase> contract_cases(bool gives_events = true) {
  std::vector<ContractCase> cases;
  for (const GpuTimerCheck& check : gpu_timer_contract()) {
    if (check.needs_events && !gives_events) continue;
    cases.push_back({&check, []() -> std::unique_ptr<GpuTimerFixture> { return std::make_unique<Fixture>(); }});
  }
  return cases;
}

inline std::string case_name(const testing::TestParamInfo<ContractCase>& info) {
  return info.param.check->name;
}

class GpuTimerContract : public testing::TestWithParam<ContractCase> {};

TEST_P(GpuTimerContract, Holds) {
  const std::unique_ptr<GpuTimerFixture> fixture = GetParam().make_fixture();
  Findings findings;
  GetParam().check->run(*fixture, findings);
  for (const std::string& line : findings.lines()) ADD_FAILURE() << line;
}

}  // namespace smon_rt::contract
