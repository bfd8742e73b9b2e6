#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "format/crc32.h"
#include "smon_rt/v1/trace.pb.h"

namespace smon_rt::test {

/// A packet of a file around what the official library serialized of it, crc32 left out.
inline std::string framed(const std::string& content) {
  const std::uint32_t crc = crc32(std::as_bytes(std::span(content)));
  std::string payload("\x0d");
  for (int shift = 0; shift < 32; shift += 8) payload.push_back(static_cast<char>(crc >> shift));
  payload += content;
  std::string frame("\x0a");
  std::uint64_t length = payload.size();
  for (; length >= 0x80; length >>= 7) frame.push_back(static_cast<char>(length | 0x80));
  frame.push_back(static_cast<char>(length));
  return frame + payload;
}

inline std::string framed(v1::TracePacket packet) {
  packet.clear_crc32();
  return framed(packet.SerializeAsString());
}

}  // namespace smon_rt::test
