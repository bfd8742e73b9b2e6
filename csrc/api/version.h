#pragma once

namespace smon_rt {

/// The project's version, handed in by CMake from python/smon_rt/__init__.py.
inline constexpr char kVersion[] = SMON_RT_VERSION;

}  // namespace smon_rt
