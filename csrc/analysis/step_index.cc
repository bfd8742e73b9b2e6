#include "analysis/step_index.h"

#include <algorithm>
#include <string>

namespace smon_rt::analysis {

StepIndex::StepIndex(std::span<const std::int64_t> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i == 0 || rows[i] != rows[i - 1]) index_.try_emplace(rows[i], 0);
  }
  for (const auto& [step, unused] : index_) steps_.push_back(step);
  std::sort(steps_.begin(), steps_.end());
  for (std::size_t i = 0; i < steps_.size(); ++i) index_[steps_[i]] = i;
}

Result<std::vector<std::int32_t>> ranks_of_workers(const OpColumns& c, const JobLayout& layout) {
  const auto pp_size = static_cast<std::size_t>(layout.pp_size);
  const std::size_t worker_count = static_cast<std::size_t>(layout.dp_size) * pp_size;
  // Bounds all that follows by the rows there are: sizes come from a file that may claim anything.
  if (worker_count > c.size()) {
    return Error{"dp " + std::to_string(layout.dp_size) + " x pp " + std::to_string(layout.pp_size) + " has " +
                 std::to_string(worker_count) + " workers, but there are only " + std::to_string(c.size()) + " ops"};
  }
  std::vector<std::int32_t> ranks(worker_count, -1);
  std::unordered_map<std::int32_t, std::size_t> worker_of;
  for (std::size_t row = 0; row < c.size(); ++row) {
    const std::size_t worker =
        static_cast<std::size_t>(c.dp_rank[row]) * pp_size + static_cast<std::size_t>(c.stage[row]);
    if (ranks[worker] == c.rank[row]) continue;
    const auto [known, is_new] = worker_of.try_emplace(c.rank[row], worker);
    if (!is_new && known->second != worker) {
      return Error{"rank " + std::to_string(c.rank[row]) + " appears as two workers, one of them dp rank " +
                   std::to_string(c.dp_rank[row]) + ", stage " + std::to_string(c.stage[row])};
    }
    if (ranks[worker] < 0 || c.rank[row] < ranks[worker]) ranks[worker] = c.rank[row];
  }
  return ranks;
}

}  // namespace smon_rt::analysis
