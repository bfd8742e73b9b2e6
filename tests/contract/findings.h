#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace smon_rt::contract {

/// What a check found to be otherwise than the contract says, one line each; none: it holds.
class Findings {
 public:
  /// Returns `holds`, for checks that make no sense to go on with otherwise.
  bool expect(bool holds, std::string_view otherwise) {
    if (!holds) lines_.emplace_back(otherwise);
    return holds;
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

}  // namespace smon_rt::contract
