#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "api/smon_rt.h"

// What the functions of the C interface share.

namespace smon_rt {

/// What a control function does when even an error cannot be put into words.
template <typename Value, typename Function>
Value guarded(Value otherwise, Function&& function) noexcept {
  try {
    return function();
  } catch (...) {  // no memory
    return otherwise;
  }
}

template <typename Function>
smon_result guarded_result(Function&& function) noexcept {
  return guarded(SMON_UNAVAILABLE, std::forward<Function>(function));
}

/// Into a field of a structure of the caller: cut where there is no room, and zeros behind it.
template <std::size_t N>
void copy_text(char (&target)[N], const std::string& text) {
  const std::size_t length = std::min(text.size(), N - 1);
  std::memcpy(target, text.data(), length);
  std::memset(target + length, 0, N - length);
}

}  // namespace smon_rt
