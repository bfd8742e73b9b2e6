#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "analysis/op_columns.h"
#include "base/result.h"

namespace smon_rt::analysis {

/// Step numbers to indices in ascending order. Rows come in runs of one step, so the last answer is kept.
class StepIndex {
 public:
  explicit StepIndex(std::span<const std::int64_t> rows);

  const std::vector<std::int64_t>& steps() const { return steps_; }

  std::size_t of(std::int64_t step) {
    if (step != last_step_ || !has_last_) {
      last_index_ = index_.find(step)->second;
      last_step_ = step;
      has_last_ = true;
    }
    return last_index_;
  }

 private:
  std::unordered_map<std::int64_t, std::size_t> index_;
  std::vector<std::int64_t> steps_;
  std::int64_t last_step_ = 0;
  std::size_t last_index_ = 0;
  bool has_last_ = false;
};

/// Lowest recorded rank of each worker, [dp_rank · pp_size + stage]; -1 for a worker without a row.
/// Errors: a rank that appears in two workers; more workers than rows.
Result<std::vector<std::int32_t>> ranks_of_workers(const OpColumns& columns, const JobLayout& layout);

}  // namespace smon_rt::analysis
