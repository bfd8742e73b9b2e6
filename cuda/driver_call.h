#pragma once

#include <cstdint>
#include <string>

#include "cuda/driver_symbols.h"

namespace smon_rt::cuda {

/// Whether the process exits: the driver is left alone from then on, since it may have shut itself down.
bool is_exiting();

/// From the exit of this process on is_exiting() is true. Called while there is a context: the driver's own exit
/// handler was registered earlier then, when it made that, and so runs later.
void watch_exit();

/// A call of a thread that may be in no context of its own: makes one current meanwhile, and may do what would break a
/// capture of another thread otherwise (asking for an event is such a thing).
class DriverCall {
 public:
  DriverCall(const DriverSymbols& driver, Handle context);
  ~DriverCall();
  DriverCall(const DriverCall&) = delete;
  DriverCall& operator=(const DriverCall&) = delete;

  explicit operator bool() const { return is_relaxed_; }

 private:
  const DriverSymbols& driver_;
  StreamCaptureMode mode_ = StreamCaptureMode::kRelaxed;
  bool is_in_context_ = false;
  bool is_relaxed_ = false;
};

inline Handle to_handle(std::uint64_t number) {
  return reinterpret_cast<Handle>(static_cast<std::uintptr_t>(number));
}
inline std::uint64_t to_number(Handle handle) {
  return reinterpret_cast<std::uintptr_t>(handle);
}

/// "the driver says 700".
std::string status_text(Status status);

}  // namespace smon_rt::cuda
