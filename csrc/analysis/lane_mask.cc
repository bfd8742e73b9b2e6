#include "analysis/lane_mask.h"

#include <map>
#include <utility>

namespace smon_rt::analysis {

void LaneMask::take_out(OpIndex op, std::size_t lane) {
  if (row_of_[op] == kEveryLane) {
    row_of_[op] = rows_.size() / lane_count_;
    rows_.resize(rows_.size() + lane_count_, ~std::uint64_t{0});
  }
  rows_[row_of_[op] * lane_count_ + lane] = 0;
}

std::vector<std::uint32_t> LaneMask::shapes() const {
  std::vector<std::uint32_t> shape(lane_count_, 0);
  for (std::size_t row = 0; row * lane_count_ < rows_.size(); ++row) {
    std::map<std::pair<std::uint32_t, bool>, std::uint32_t> refined;
    for (std::size_t lane = 0; lane < lane_count_; ++lane) {
      const bool has = rows_[row * lane_count_ + lane] != 0;
      const auto next = static_cast<std::uint32_t>(refined.size());
      shape[lane] = refined.try_emplace({shape[lane], has}, next).first->second;
    }
  }
  return shape;
}

}  // namespace smon_rt::analysis
