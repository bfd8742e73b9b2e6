#pragma once

#include <protozero/pbf_builder.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "format/crc32.h"
#include "format/trace_fields.h"

namespace smon_rt {

/// Begins a message within another one that is being written to `out`. protozero does so in a noexcept constructor:
/// what it appends must not be the allocation that fails, since that would end the process that is being recorded.
template <typename Tag, typename ParentTag>
protozero::pbf_builder<Tag> begin_message(std::string& out, protozero::pbf_builder<ParentTag>& parent, ParentTag tag) {
  constexpr std::size_t kMaxHeadBytes = 16;
  out.reserve(out.size() + kMaxHeadBytes);
  return {parent, tag};
}

/// Appends one packet to a trace: tag and length, then the checksum, then what is added through fields(). finish() sets
/// the two that are known last; without it (growing the output threw) the packet is taken back.
class PacketWriter {
 public:
  explicit PacketWriter(std::string& out)
      : out_(out), start_(out.size()), packet_((out.append(kMaxHeaderBytes, '\0'), out)) {
    packet_.add_fixed32(trace_fields::Packet::kCrc32, 0);
  }
  PacketWriter(const PacketWriter&) = delete;
  PacketWriter& operator=(const PacketWriter&) = delete;
  ~PacketWriter() {
    if (!is_finished_) out_.resize(start_);
  }

  protozero::pbf_builder<trace_fields::Packet>& fields() { return packet_; }

  void finish() {
    const std::size_t payload = start_ + kMaxHeaderBytes;
    const std::size_t checked = payload + 1 + sizeof(std::uint32_t);  // behind crc32's tag and value
    const std::uint32_t crc = crc32(std::as_bytes(std::span(out_).subspan(checked)));
    for (std::size_t i = 0; i < sizeof(crc); ++i) out_[payload + 1 + i] = static_cast<char>(crc >> (8 * i));

    std::string header{kPacketTag};  // short enough to need no allocation
    protozero::add_varint_to_buffer(&header, out_.size() - payload);
    out_.replace(start_, kMaxHeaderBytes, header);
    is_finished_ = true;
  }

 private:
  static constexpr char kPacketTag = static_cast<char>(trace_fields::Trace::kPacket) << 3 |
                                     static_cast<char>(protozero::pbf_wire_type::length_delimited);
  static constexpr std::size_t kMaxHeaderBytes = 1 + 5;

  std::string& out_;
  std::size_t start_;
  bool is_finished_ = false;
  protozero::pbf_builder<trace_fields::Packet> packet_;
};

}  // namespace smon_rt
