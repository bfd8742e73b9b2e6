#pragma once

#include <cstdint>

#include "api/smon_rt.h"

// The forward of a plain model that awaits its backward on this thread: integrations/torch/compute.py begins it, and
// whatever is recorded next closes it.

namespace smon_rt::bindings {

/// Ends the calling thread's forward where its module returned, unless the module is still running.
void close_forward(std::uint16_t flags);

}  // namespace smon_rt::bindings
