#include "format/crc32.h"

#include <array>

namespace smon_rt {
namespace {

constexpr std::size_t kSliceBytes = 8;
using Table = std::array<std::uint32_t, 256>;

// tables[k][b]: what byte b does to the checksum when k more bytes follow it. So eight bytes are eight look-ups that do
// not wait for each other, instead of eight that do.
constexpr std::array<Table, kSliceBytes> make_tables() {
  std::array<Table, kSliceBytes> tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
    tables[0][byte] = crc;
  }
  for (std::size_t slice = 1; slice < kSliceBytes; ++slice) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[slice - 1][byte];
      tables[slice][byte] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  }
  return tables;
}

constexpr std::array<Table, kSliceBytes> kTables = make_tables();

std::uint32_t at(std::span<const std::byte> bytes, std::size_t index) {
  return std::to_integer<std::uint32_t>(bytes[index]);
}

// Little-endian whatever the machine is; compilers make one load of it.
std::uint32_t word_at(std::span<const std::byte> bytes, std::size_t index) {
  return at(bytes, index) | at(bytes, index + 1) << 8 | at(bytes, index + 2) << 16 | at(bytes, index + 3) << 24;
}

}  // namespace

std::uint32_t crc32(std::span<const std::byte> bytes, std::uint32_t crc) noexcept {
  crc = ~crc;
  std::size_t i = 0;
  for (; i + kSliceBytes <= bytes.size(); i += kSliceBytes) {
    const std::uint32_t low = crc ^ word_at(bytes, i);
    const std::uint32_t high = word_at(bytes, i + 4);
    crc = kTables[7][low & 0xFF] ^ kTables[6][(low >> 8) & 0xFF] ^ kTables[5][(low >> 16) & 0xFF] ^
          kTables[4][low >> 24] ^ kTables[3][high & 0xFF] ^ kTables[2][(high >> 8) & 0xFF] ^
          kTables[1][(high >> 16) & 0xFF] ^ kTables[0][high >> 24];
  }
  for (; i < bytes.size(); ++i) crc = (crc >> 8) ^ kTables[0][(crc ^ at(bytes, i)) & 0xFF];
  return ~crc;
}

}  // namespace smon_rt
