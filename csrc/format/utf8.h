#pragma once

#include <string>
#include <string_view>

namespace smon_rt {

/// Whether a text is UTF-8 as protobuf libraries demand it: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view text) noexcept;

/// The text with U+FFFD in place of each byte that is no part of UTF-8.
std::string to_utf8(std::string_view text);

}  // namespace smon_rt
