// Any bytes as DIR/request.json: a request within its limits, or one line of why not.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "record/request_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto request = smon_rt::parse_sampling_request({reinterpret_cast<const char*>(data), size});
  if (!request) {
    if (request.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const bool is_within = request->first_step >= 0 && request->step_count >= 1 &&
                         request->step_count <= smon_rt::kMaxRequestedSteps && size <= smon_rt::kMaxRequestBytes;
  if (!is_within) std::abort();
  return 0;
}
