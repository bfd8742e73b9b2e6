#pragma once

#include <cstddef>
#include <string>

namespace smon_rt::contract {

inline constexpr std::size_t kLeastCopiedBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMostCopiedBytes = std::size_t{1} << 40;

/// What CudaCopier does on the first GPU with a state of so many bytes, as one JSON object: speeds beside a plain copy,
/// what it costs the thread and the streams of the job, and how many snapshots were torn, with gates and without.
/// Throws where the GPU does not go on.
std::string measure_copies(std::size_t bytes);

}  // namespace smon_rt::contract
