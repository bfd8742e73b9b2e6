#pragma once

#include <protozero/data_view.hpp>
#include <protozero/types.hpp>
#include <protozero/varint.hpp>

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "format/packed_column.h"
#include "format/trace_reader.h"

// Columns of messages (trace.proto), as they come from any bytes.

namespace smon_rt {

/// A packet whose checksum is right but whose content contradicts itself; what() is one line.
class DamagedPacket : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Numbers as on the wire.
using Column = std::vector<std::uint64_t>;

inline void add_value(Column& column, std::uint64_t value) {
  if (column.size() == kMaxRowsPerPacket) throw DamagedPacket("a column has more values than a packet may have");
  column.push_back(value);
}

/// Adds a field of the message to its column: one value, or several packed. False if it is something else.
template <typename Message>
bool read_varints(Message& message, Column& column) {
  if (message.wire_type() == protozero::pbf_wire_type::varint) {
    add_value(column, message.get_uint64());
    return true;
  }
  if (message.wire_type() != protozero::pbf_wire_type::length_delimited) return false;
  const protozero::data_view packed = message.get_view();
  const char* const end = packed.data() + packed.size();
  for (const char* next = packed.data(); next != end;) add_value(column, protozero::decode_varint(&next, end));
  return true;
}

/// The number of a column of sint (T signed) or uint, if T has it.
template <typename T>
T narrow(std::uint64_t value, const char* column) {
  std::int64_t number = static_cast<std::int64_t>(value);
  if constexpr (std::is_signed_v<T>) number = unzigzag(value);
  const T narrowed = static_cast<T>(number);
  if (narrowed != number) throw DamagedPacket(std::string(column) + " has a value that is out of range");
  return narrowed;
}

/// Value i of a column that may be absent or constant.
inline std::uint64_t value_at(const Column& column, std::size_t i, std::uint64_t default_value) {
  if (column.empty()) return default_value;
  return column[column.size() == 1 ? 0 : i];
}

inline bool has_length(const Column& column, std::size_t count) {
  return column.size() <= 1 || column.size() == count;
}

inline void require_length(const Column& column, std::size_t count, const char* name) {
  if (column.size() == count) return;
  throw DamagedPacket(std::string(name) + " has " + std::to_string(column.size()) + " values, not " +
                      std::to_string(count));
}

}  // namespace smon_rt
