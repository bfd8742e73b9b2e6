#pragma once

#include <protozero/types.hpp>

#include <cstdint>

// What to switch over when a message is read. A field is what the schema says only with the wire type of the schema;
// with another it is unknown.

namespace smon_rt::field_tags {

template <typename Tag>
constexpr std::uint32_t varint(Tag tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::varint);
}
template <typename Tag>
constexpr std::uint32_t bytes_of(Tag tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::length_delimited);
}
template <typename Tag>
constexpr std::uint32_t fixed64(Tag tag) {
  return protozero::tag_and_type(tag, protozero::pbf_wire_type::fixed64);
}

}  // namespace smon_rt::field_tags
