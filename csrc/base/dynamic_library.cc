#include "base/dynamic_library.h"

#include <dlfcn.h>

namespace smon_rt {

namespace {

/// What the last call on this thread found wrong, "" if it does not say. Asked once more, the C library forgets and
/// frees it: the job does not hear of it later, and nothing stays until the thread ends.
std::string take_error() {
  const char* reason = ::dlerror();
  std::string taken = reason != nullptr ? reason : "";
  ::dlerror();
  return taken;
}

}  // namespace

Result<DynamicLibrary> DynamicLibrary::open_with(const std::string& name, int flags) {
  // RTLD_NODELETE: should somebody else close it for the last time, functions that were taken from it stay.
  void* handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE | flags);
  if (handle != nullptr) return DynamicLibrary(handle);
  const std::string reason = take_error();
  return Error{reason.empty() ? name + ": not loaded" : reason};
}

Result<DynamicLibrary> DynamicLibrary::open(const std::string& name) {
  return open_with(name, 0);
}

Result<DynamicLibrary> DynamicLibrary::open_loaded(const std::string& name) {
  return open_with(name, RTLD_NOLOAD);
}

void* DynamicLibrary::find(const char* symbol) const noexcept {
  void* found = ::dlsym(handle_, symbol);
  if (found == nullptr) {
    ::dlerror();
    ::dlerror();  // as above
  }
  return found;
}

std::string library_path_of(const void* address) {
  Dl_info info{};
  return ::dladdr(address, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace smon_rt
