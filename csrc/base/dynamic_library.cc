#include "base/dynamic_library.h"

#include <dlfcn.h>

namespace smon_rt {

Result<DynamicLibrary> DynamicLibrary::open_with(const std::string& name, int flags) {
  // RTLD_NODELETE: should somebody else close it for the last time, functions that were taken from it stay.
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);
  if (handle != nullptr) return DynamicLibrary(handle);
  const char* reason = ::dlerror();
  return Error{reason != nullptr ? reason : name + ": not loaded"};
}

Result<DynamicLibrary> DynamicLibrary::open(const std::string& name) {
  return open_with(name, 0);
}

Result<DynamicLibrary> DynamicLibrary::open_loaded(const std::string& name) {
  return open_with(name, RTLD_NOLOAD);
}

void* DynamicLibrary::find(const char* symbol) const noexcept {
  return ::dlsym(handle_, symbol);
}

std::string library_path_of(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace smon_rt
