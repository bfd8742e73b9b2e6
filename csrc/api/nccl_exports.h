#pragma once

#include "api/smon_rt.h"
#include "cuda/nccl_profiler_types.h"

// NCCL looks these symbols up by name, the newest first.
extern "C" {
extern SMON_API const smon_rt::nccl::PluginV4 ncclProfiler_v4;
extern SMON_API const smon_rt::nccl::PluginV5 ncclProfiler_v5;
extern SMON_API const smon_rt::nccl::PluginV6 ncclProfiler_v6;
}
