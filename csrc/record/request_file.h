#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace smon_rt {

/// A window of steps that someone asked to have sampled on all ranks: DIR/request.json,
/// {"first_step": 1200, "step_count": 20}. Further keys are skipped; "run_id", a text, restricts it to one run.
struct SamplingRequest {
  std::int64_t first_step = 0;
  std::int32_t step_count = 0;
  std::string run_id;  // "": any

  friend bool operator==(const SamplingRequest&, const SamplingRequest&) = default;
};

inline constexpr std::size_t kMaxRequestBytes = 4096;
inline constexpr std::int32_t kMaxRequestedSteps = 10'000;

/// Reads one flat JSON object. Any bytes are answered with a request or an error, never more.
Result<SamplingRequest> parse_sampling_request(std::string_view text);

/// What parse_sampling_request reads as this request. A run id that it would not take (control characters, too long) is
/// left out: asking more runs than meant is better than a file that none understands.
std::string encode_sampling_request(const SamplingRequest& request);

}  // namespace smon_rt
