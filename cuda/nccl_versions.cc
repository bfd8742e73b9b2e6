#include "cuda/nccl_versions.h"

#include <array>

#include "base/dynamic_library.h"

namespace smon_rt::nccl {

namespace {

struct Refused {
  int first, last;
  const char* ops;
  const char* why;
};

// github.com/NVIDIA/nccl/issues and their numbers.
constexpr std::array kRefused = {
    // The events of all that a group sends and receives on one connection are merged into one, which has room for 64.
    Refused{22700, 22799, "all-to-all", "end the job with \"Proxy append out of bounds\" (nccl #2039)"},
    Refused{22800, 22902, "many operations at once", "may wait for each other for ever (nccl #2353)"},
    Refused{23000, 23099, "all-to-all", "crash the process (nccl #2112)"},
    Refused{23100, 23199, "all-reduce", "lose 4 to 13 % of its bandwidth (nccl #2355)"},
};

// People have run it with times of kernels: all-to-all goes on (#2039), all-reduce loses 0.1 to 1.1 % (#2355).
constexpr std::array kTried = {22907};

std::string name_of(int version) {
  return "NCCL " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace

int version_at(const void* variable) {
  const std::string path = library_path_of(variable);
  if (path.empty()) return 0;
  const Result<DynamicLibrary> library = DynamicLibrary::open_loaded(path);
  if (!library) return 0;
  auto* get_version = reinterpret_cast<int (*)(int*)>(library->find("ncclGetVersion"));
  int version = 0;
  return get_version != nullptr && get_version(&version) == 0 && version > 0 ? version : 0;
}

std::string kernel_times_refusal(int version) {
  if (version == 0) return "which version of NCCL this is is not known";
  for (const Refused& refused : kRefused) {
    if (version < refused.first || version > refused.last) continue;
    return "with times of kernels, " + name_of(version) + " may have " + refused.ops + " " + refused.why;
  }
  for (const int tried : kTried) {
    if (version == tried) return "";
  }
  return "nobody has tried times of kernels with " + name_of(version);
}

}  // namespace smon_rt::nccl
