#pragma once

#include <memory>
#include <string>

#include "record/gpu_timer.h"

namespace smon_rt {

/// The timer of the GPUs that this machine's driver has; null, and why in `reason`, if it has none that is known here.
/// Loads the driver's library, and starts nothing: contexts are the job's.
std::unique_ptr<GpuTimer> find_gpu_timer(std::string& reason);

}  // namespace smon_rt
