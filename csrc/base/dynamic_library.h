#pragma once

#include <string>

#include "base/result.h"

namespace smon_rt {

/// A shared library found at run time: the driver of a GPU, or what a framework has loaded. It stays loaded for the
/// rest of the process, since whoever took a function from it may be inside.
///
/// Threading: any thread; opening takes the loader's lock.
class DynamicLibrary {
 public:
  /// Loads a library, by name (as the loader searches) or path; its symbols are for nobody else. An error says why not.
  static Result<DynamicLibrary> open(const std::string& name);

  /// Only if the process has it loaded already.
  static Result<DynamicLibrary> open_loaded(const std::string& name);

  /// Of a symbol; null if there is none.
  void* find(const char* symbol) const noexcept;

 private:
  explicit DynamicLibrary(void* handle) : handle_(handle) {}
  static Result<DynamicLibrary> open_with(const std::string& name, int flags);

  void* handle_;
};

/// The file that a function or variable of this process was loaded from, "" if the loader does not know.
std::string library_path_of(const void* address);

}  // namespace smon_rt
