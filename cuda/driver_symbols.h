#pragma once

#include <string>

#include "base/result.h"
#include "cuda/driver_types.h"

namespace smon_rt::cuda {

/// The functions of the driver, all of them there.
struct DriverSymbols {
#define SMON_DRIVER_SYMBOL(name, type, version, older_version) type name = nullptr;
#include "cuda/driver_symbols.inc"
#undef SMON_DRIVER_SYMBOL
  int version = 0;  // of CUDA, that this driver can do: 12080 is 12.8
};

/// The driver as a job finds it.
inline constexpr char kDriverLibrary[] = "libcuda.so.1";

/// Loads the driver, without starting it, and takes its functions in forms that are known here. An error says which
/// library or function is missing, or which is too old.
Result<DriverSymbols> load_driver(const std::string& library = kDriverLibrary);

}  // namespace smon_rt::cuda
