#pragma once

#include <memory>
#include <string>

#include "checkpoint/gpu_copier.h"
#include "record/gpu_timer.h"

namespace smon_rt {

/// The timer of the GPUs that this machine's driver has; null, and why in `reason`, if it has none that is known here.
/// Loads the driver's library, and starts nothing: contexts are the job's.
std::unique_ptr<GpuTimer> find_gpu_timer(std::string& reason);

/// Copies from the GPUs of this machine's driver: one for each context that tensors are in, opened there by the caller.
/// NullGpuCopier, and why in `reason`, where there is none; as above, nothing is started.
std::unique_ptr<GpuCopier> find_gpu_copier(std::string& reason);

}  // namespace smon_rt
