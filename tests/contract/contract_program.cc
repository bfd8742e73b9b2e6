// smon_contract NAME: holds one implementation of GpuTimer or GpuCopier against its contract, on the machine of whoever
// runs it, and says as one line of JSON what came out. `smon check-gpu` runs it in a process of its own.
//
// smon_contract cuda_copies BYTES: what it costs a job to have so much copied, and whether a snapshot is torn; as JSON.
//
// Exits with 0 if the contract holds, 1 if it does not, 2 if there is no such thing here.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>

#include "contract/copier_measurement.h"
#include "contract/cuda_copier_fixture.h"
#include "contract/cuda_timer_fixture.h"
#include "contract/gpu_copier_contract.h"
#include "contract/gpu_timer_contract.h"
#include "contract/gpu_timer_fixtures.h"

namespace smon_rt::contract {
namespace {

constexpr int kHolds = 0;
constexpr int kBroken = 1;
constexpr int kNotHere = 2;

/// {"name": …, "findings": […]} of each check, with commas, and whether all hold.
struct Outcomes {
  bool holds = true;
  std::string text;
};

std::string always() {
  return "";
}

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (const char character : text) {
    if (character == '"' || character == '\\') out += '\\';
    out += static_cast<unsigned char>(character) < ' ' ? ' ' : character;
  }
  return out + '"';
}

/// Runs a check on a fixture of its own; one that cannot go on is a finding.
template <typename Fixture, typename Check>
void run_check(const Check& check, Outcomes& outcomes) {
  Findings findings;
  try {
    Fixture fixture;
    check.run(fixture, findings);
  } catch (const std::exception& error) {
    findings.expect(false, error.what());
  }
  outcomes.holds = outcomes.holds && findings.lines().empty();
  outcomes.text += (outcomes.text.empty() ? "" : ", ") + ("{\"name\": " + quoted(check.name) + ", \"findings\": [");
  for (const std::string& line : findings.lines()) {
    if (outcomes.text.back() != '[') outcomes.text += ", ";
    outcomes.text += quoted(line);
  }
  outcomes.text += "]}";
}

template <typename Fixture, bool kGivesEvents>
Outcomes run_timer() {
  Outcomes outcomes;
  for (const GpuTimerCheck& check : gpu_timer_contract()) {
    if (kGivesEvents || !check.needs_events) run_check<Fixture>(check, outcomes);
  }
  return outcomes;
}

Outcomes run_copier() {
  Outcomes outcomes;
  for (const GpuCopierCheck& check : gpu_copier_contract()) run_check<CudaCopierFixture>(check, outcomes);
  return outcomes;
}

struct Implementation {
  std::string_view name;
  Outcomes (*run)();
  std::string (*why_not)();  // "" if it can be had here
};

constexpr Implementation kImplementations[] = {
    {"null", run_timer<NullGpuTimerFixture, false>, always},
    {"fake", run_timer<FakeGpuTimerFixture, true>, always},
    {"cuda", run_timer<CudaTimerFixture, true>, CudaTimerFixture::why_not},
    {"cuda_copier", run_copier, CudaTimerFixture::why_not},
};

int run(const Implementation& implementation) {
  if (const std::string reason = implementation.why_not(); !reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return kNotHere;
  }
  const Outcomes outcomes = implementation.run();
  std::printf("{\"timer\": %s, \"checks\": [%s]}\n", quoted(implementation.name).c_str(), outcomes.text.c_str());
  return outcomes.holds ? kHolds : kBroken;
}

int measure(const char* bytes_text) {
  if (const std::string reason = CudaTimerFixture::why_not(); !reason.empty()) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return kNotHere;
  }
  char* end = nullptr;
  const unsigned long long bytes = std::strtoull(bytes_text, &end, 10);
  if (*end != '\0' || bytes < kLeastCopiedBytes || bytes > kMostCopiedBytes) {
    std::fprintf(stderr, "smon_contract cuda_copies: \"%s\" is no number of bytes from 1 MiB to 1 TiB\n", bytes_text);
    return kNotHere;
  }
  try {
    std::printf("%s\n", measure_copies(static_cast<std::size_t>(bytes)).c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return kBroken;
  }
  return kHolds;
}

}  // namespace
}  // namespace smon_rt::contract

int main(int argument_count, char** arguments) {
  using namespace smon_rt::contract;
  const std::string_view wanted = argument_count >= 2 ? arguments[1] : "";
  if (argument_count == 3 && wanted == "cuda_copies") return measure(arguments[2]);
  for (const Implementation& implementation : kImplementations) {
    if (argument_count == 2 && implementation.name == wanted) return run(implementation);
  }
  std::fprintf(stderr, "smon_contract: no implementation \"%.*s\": name one of", static_cast<int>(wanted.size()),
               wanted.data());
  for (const Implementation& implementation : kImplementations) std::fprintf(stderr, " %s", implementation.name.data());
  std::fprintf(stderr, "\n");
  return kNotHere;
}
