#include "format/crc32.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace smon_rt {
namespace {

std::uint32_t crc_of(std::string_view text) {
  return crc32(std::as_bytes(std::span(text)));
}

// One bit at a time, as the standard writes it.
std::uint32_t slow_crc(std::string_view text) {
  std::uint32_t crc = ~0U;
  for (const char c : text) {
    crc ^= static_cast<unsigned char>(c);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
  }
  return ~crc;
}

TEST(Crc32, HasTheValuesOfZlib) {
  // From Python's zlib.crc32.
  EXPECT_EQ(crc_of(""), 0U);
  EXPECT_EQ(crc_of("a"), 0xE8B7BE43U);
  EXPECT_EQ(crc_of("123456789"), 0xCBF43926U);
  EXPECT_EQ(crc_of("The quick brown fox jumps over the lazy dog"), 0x414FA339U);
  EXPECT_EQ(crc_of(std::string(1000, '\0')), 0x060B1780U);
  std::string all(256, '\0');
  std::iota(all.begin(), all.end(), '\0');
  EXPECT_EQ(crc_of(all), 0x29058C73U);
}

TEST(Crc32, AgreesWithTheBitwiseFormAtEveryLengthAndAlignment) {
  std::string text(300, '\0');
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * i * 31 + 7);
  for (std::size_t start = 0; start < 9; ++start) {
    for (std::size_t length = 0; start + length <= 100; ++length) {
      const std::string_view part = std::string_view(text).substr(start, length);
      ASSERT_EQ(crc_of(part), slow_crc(part)) << start << " " << length;
    }
  }
}

TEST(Crc32, ContinuesFromTheChecksumOfWhatCameBefore) {
  const std::string_view text = "The quick brown fox jumps over the lazy dog";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    const std::uint32_t before = crc_of(text.substr(0, cut));
    EXPECT_EQ(crc32(std::as_bytes(std::span(text.substr(cut))), before), crc_of(text));
  }
}

}  // namespace
}  // namespace smon_rt
