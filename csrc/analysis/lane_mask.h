#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "analysis/op_graph.h"

namespace smon_rt::analysis {

/// A subset of the lanes for each op: those that have it. Most ops are in every lane and cost nothing here.
class LaneMask {
 public:
  /// Every op in every lane.
  LaneMask() = default;
  LaneMask(std::size_t op_count, std::size_t lane_count) : row_of_(op_count, kEveryLane), lane_count_(lane_count) {}

  bool is_everything() const { return rows_.empty(); }
  /// All ones for each lane in the subset, 0 for the others; null where all lanes are in it.
  const std::uint64_t* of(OpIndex op) const {
    return is_everything() || row_of_[op] == kEveryLane ? nullptr : rows_.data() + row_of_[op] * lane_count_;
  }
  bool has(OpIndex op, std::size_t lane) const {
    const std::uint64_t* row = of(op);
    return row == nullptr || row[lane] != 0;
  }
  void take_out(OpIndex op, std::size_t lane);

  /// A number for each lane, equal for lanes that have the same ops.
  std::vector<std::uint32_t> shapes() const;

 private:
  static constexpr std::size_t kEveryLane = static_cast<std::size_t>(-1);

  std::vector<std::size_t> row_of_;
  std::vector<std::uint64_t> rows_;
  std::size_t lane_count_ = 0;
};

}  // namespace smon_rt::analysis
