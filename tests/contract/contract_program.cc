// smon_contract TIMER: holds one implementation of GpuTimer against the contract, on the machine of whoever runs it,
// and says as one line of JSON what came out. `smon check-gpu` runs it in a process of its own.
//
// Exits with 0 if the contract holds, 1 if it does not, 2 if there is no such timer here.

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <string_view>

#include "contract/cuda_timer_fixture.h"
#include "contract/gpu_timer_contract.h"
#include "contract/gpu_timer_fixtures.h"

namespace smon_rt::contract {
namespace {

constexpr int kHolds = 0;
constexpr int kBroken = 1;
constexpr int kNoSuchTimer = 2;

struct Implementation {
  std::string_view name;
  bool gives_events;
  std::unique_ptr<GpuTimerFixture> (*make_fixture)();
  std::string (*why_not)();  // "" if it can be had here
};

template <typename Fixture>
std::unique_ptr<GpuTimerFixture> make() {
  return std::make_unique<Fixture>();
}

std::string always() {
  return "";
}

constexpr Implementation kImplementations[] = {
    {"null", false, make<NullGpuTimerFixture>, always},
    {"fake", true, make<FakeGpuTimerFixture>, always},
    {"cuda", true, make<CudaTimerFixture>, CudaTimerFixture::why_not},
};

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') out += '\\';
    out += static_cast<unsigned char>(character) < ' ' ? ' ' : character;
  }
  return out + '"';
}

/// {"name": …, "findings": […]}
std::string outcome(const GpuTimerCheck& check, const Findings& findings) {
  std::string out = "{\"name\": " + quoted(check.name) + ", \"findings\": [";
  for (const std::string& line : findings.lines()) {
    if (out.back() != '[') out += ", ";
    out += quoted(line);
  }
  return out + "]}";
}

/// Runs a check; a fixture that cannot go on is a finding.
Findings run(const GpuTimerCheck& check, const Implementation& implementation) {
  Findings findings;
  try {
    check.run(*implementation.make_fixture(), findings);
  } catch (const std::exception& error) {
    findings.expect(false, error.what());
  }
  return findings;
}

int run(const Implementation& implementation) {
  if (const std::string reason = implementation.why_not(); !reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return kNoSuchTimer;
  }
  bool holds = true;
  std::string outcomes;
  for (const GpuTimerCheck& check : gpu_timer_contract()) {
    if (check.needs_events && !implementation.gives_events) continue;
    const Findings findings = run(check, implementation);
    holds = holds && findings.lines().empty();
    outcomes += (outcomes.empty() ? "" : ", ") + outcome(check, findings);
  }
  std::printf("{\"timer\": %s, \"checks\": [%s]}\n", quoted(implementation.name).c_str(), outcomes.c_str());
  return holds ? kHolds : kBroken;
}

}  // namespace
}  // namespace smon_rt::contract

int main(int argument_count, char** arguments) {
  using namespace smon_rt::contract;
  const std::string_view wanted = argument_count == 2 ? arguments[1] : "";
  for (const Implementation& implementation : kImplementations) {
    if (implementation.name == wanted) return run(implementation);
  }
  std::fprintf(stderr, "smon_contract: no timer \"%.*s\": name one of", static_cast<int>(wanted.size()), wanted.data());
  for (const Implementation& implementation : kImplementations) std::fprintf(stderr, " %s", implementation.name.data());
  std::fprintf(stderr, "\n");
  return kNoSuchTimer;
}
