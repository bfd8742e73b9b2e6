#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "contract/gpu_copier_contract.h"

// The contract of GpuCopier as tests, one a check:
//   INSTANTIATE_TEST_SUITE_P(Fake, GpuCopierContract, testing::ValuesIn(copier_cases<FakeFixture>()),
//   copier_case_name);
// copier_cases<Fixture>(false) leaves out what a copier that never copies cannot do.

namespace smon_rt::contract {

struct CopierCase {
  const GpuCopierCheck* check;
  std::unique_ptr<GpuCopierFixture> (*make_fixture)();

  friend std::ostream& operator<<(std::ostream& out, const CopierCase& one) { return out << one.check->name; }
};

template <typename Fixture>
std::vector<CopierCase> copier_cases(bool has_gpu = true) {
  std::vector<CopierCase> cases;
  for (const GpuCopierCheck& check : gpu_copier_contract()) {
    if (check.needs_gpu && !has_gpu) continue;
    cases.push_back({&check, []() -> std::unique_ptr<GpuCopierFixture> { return std::make_unique<Fixture>(); }});
  }
  return cases;
}

inline std::string copier_case_name(const testing::TestParamInfo<CopierCase>& info) {
  return info.param.check->name;
}

class GpuCopierContract : public testing::TestWithParam<CopierCase> {};

TEST_P(GpuCopierContract, Holds) {
  const std::unique_ptr<GpuCopierFixture> fixture = GetParam().make_fixture();
  Findings findings;
  GetParam().check->run(*fixture, findings);
  for (const std::string& line : findings.lines()) ADD_FAILURE() << line;
}

}  // namespace smon_rt::contract
