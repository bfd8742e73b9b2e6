#include "analysis/lane_mask.h"

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
  std::vector<std::uint32_t> refined;  // by shape so far, and whether the lane has the op
  std::uint32_t shape_count = 1;
  for (std::size_t row = 0; row * lane_count_ < rows_.size(); ++row) {
    constexpr std::uint32_t kUnseen = static_cast<std::uint32_t>(-1);
    refined.assign(2 * std::size_t{shape_count}, kUnseen);
    shape_count = 0;
    for (std::size_t lane = 0; lane < lane_count_; ++lane) {
      const bool has = rows_[row * lane_count_ + lane] != 0;
      std::uint32_t& next = refined[2 * std::size_t{shape[lane]} + (has ? 1 : 0)];
      if (next == kUnseen) next = shape_count++;
      shape[lane] = next;
    }
  }
  return shape;
}

}  // namespace smon_rt::analysis
