#pragma once

#include <protozero/buffer_string.hpp>
#include <protozero/types.hpp>
#include <protozero/varint.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

namespace smon_rt {

constexpr std::uint64_t zigzag(std::int64_t value) {
  return static_cast<std::uint64_t>(value) << 1 ^ (value < 0 ? ~std::uint64_t{0} : 0);
}

constexpr std::int64_t unzigzag(std::uint64_t value) {
  return static_cast<std::int64_t>(value >> 1 ^ ((value & 1) != 0 ? ~std::uint64_t{0} : 0));
}

/// Zigzag of a difference modulo 2^32, given as such.
constexpr std::uint64_t zigzag32(std::uint32_t difference) {
  return zigzag(static_cast<std::int32_t>(difference));
}

/// Zigzag of a - b modulo 2^64: exact for any two times, however far apart.
constexpr std::uint64_t zigzag_difference(std::int64_t a, std::int64_t b) {
  return zigzag(static_cast<std::int64_t>(static_cast<std::uint64_t>(a) - static_cast<std::uint64_t>(b)));
}

/// a + difference modulo 2^64, the reverse.
constexpr std::int64_t add_difference(std::int64_t a, std::uint64_t zigzagged) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(unzigzag(zigzagged)));
}

/// Bytes of a varint, without a loop: ceil(bits / 7) for 1 to 64 bits.
constexpr std::size_t varint_bytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) * 9 + 64) / 64;
}

/// Appends tag and length of a field; its bytes come next.
template <typename Field>
void append_length_delimited_header(std::string& out, Field field, std::size_t bytes) {
  const auto wire_type = static_cast<std::uint64_t>(protozero::pbf_wire_type::length_delimited);
  protozero::add_varint_to_buffer(&out, static_cast<std::uint64_t>(field) << 3 | wire_type);
  protozero::add_varint_to_buffer(&out, bytes);
}

/// Appends a packed field of `count` varints, value(0), value(1), … as they are on the wire.
template <typename Field, typename Value>
void append_packed(std::string& out, Field field, std::size_t count, Value value) {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < count; ++i) bytes += varint_bytes(value(i));
  append_length_delimited_header(out, field, bytes);
  const std::size_t start = out.size();
  out.resize(start + bytes);
  char* end = out.data() + start;
  for (std::size_t i = 0; i < count; ++i) end += protozero::add_varint_to_buffer(end, value(i));
}

/// A default that no value of a column equals: the column is never left out.
inline constexpr std::uint64_t kNoDefault = ~std::uint64_t{0};

/// The same with the shorthands of columns: nothing if all values are the default, one value if all are equal.
template <typename Field, typename Value>
void append_column(std::string& out, Field field, std::size_t count, std::uint64_t default_value, Value value) {
  if (count == 0) return;
  const std::uint64_t first = value(0);
  std::size_t equal = 1;
  while (equal < count && value(equal) == first) ++equal;
  if (equal < count) {
    append_packed(out, field, count, value);
  } else if (first != default_value) {
    append_packed(out, field, 1, value);
  }
}

}  // namespace smon_rt
