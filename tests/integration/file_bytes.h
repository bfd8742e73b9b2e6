#pragma once

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

namespace smon_rt {

/// All of a file; nothing if there is none. In one read: a byte at a time takes seconds for an arena under sanitizers.
inline std::vector<std::byte> read_file_bytes(const std::filesystem::path& path) {
  std::error_code none;
  const auto size = std::filesystem::file_size(path, none);
  if (none) return {};
  std::vector<std::byte> bytes(size);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  bytes.resize(static_cast<std::size_t>(file.gcount()));
  return bytes;
}

}  // namespace smon_rt
