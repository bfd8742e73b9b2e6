#include "analysis/missing_workers.h"

#include <algorithm>

#include "analysis/statistics.h"

namespace smon_rt::analysis {

MissingWorkers::MissingWorkers(const LaneTable& table, const OpGraph& graph)
    : table_(table), graph_(graph), pp_size_(table.worker_ranks().size() / table.dp_size()) {
  recorded_of_stage_.assign(pp_size_, 0);
  for (std::size_t worker = 0; worker < table.worker_ranks().size(); ++worker) {
    is_missing_.push_back(table.worker_ranks()[worker] < 0);
    if (is_missing_.back()) {
      are_there_ = true;
    } else {
      ++recorded_of_stage_[worker % pp_size_];
    }
  }
  if (are_there_) index_microbatches();
}

void MissingWorkers::index_microbatches() {
  microbatches_.resize(table_.lane_count());
  for (OpIndex op = 0; op < graph_.size(); ++op) {
    const Op& it = graph_.op(op);
    if (it.microbatch < 0) continue;
    const auto microbatch = static_cast<std::size_t>(it.microbatch);
    ops_of_microbatch_[{it.kind, it.microbatch}].push_back(op);
    for (std::size_t lane = 0; lane < table_.lane_count(); ++lane) {
      if (!table_.recorded().has(op, lane)) continue;
      if (microbatches_[lane].size() <= microbatch) microbatches_[lane].resize(microbatch + 1, false);
      microbatches_[lane][microbatch] = true;
    }
  }
}

bool MissingWorkers::has(OpIndex op, std::size_t lane) const {
  if (!is_missing(op, lane)) return false;
  const std::size_t first = lane / table_.dp_size() * table_.dp_size();
  std::size_t count = 0;
  for (std::size_t other = first; other < first + table_.dp_size(); ++other) {
    if (table_.recorded().has(op, other)) ++count;
  }
  const Op& it = graph_.op(op);
  if (it.microbatch >= 0 && !microbatches_[lane].empty()) {
    const auto microbatch = static_cast<std::size_t>(it.microbatch);
    return count > 0 && microbatch < microbatches_[lane].size() && microbatches_[lane][microbatch];
  }
  return count > 0 && 2 * count >= recorded_of_stage_[static_cast<std::size_t>(it.stage)];
}

double MissingWorkers::duration_ns(OpIndex op, std::size_t lane) {
  return usual_of_stage_ns(op) * microbatch_factor(op, lane);
}

double MissingWorkers::usual_of_stage_ns(OpIndex op) {
  const auto [found, is_new] = usual_of_stage_.try_emplace(op, 0);
  if (!is_new) return found->second;
  std::vector<double> of_ranks;
  for (std::size_t dp_rank = 0; dp_rank < table_.dp_size(); ++dp_rank) {
    if (const double usual = usual_ns(op, dp_rank); usual > 0) of_ranks.push_back(usual);
  }
  return found->second = lower_median(of_ranks);
}

double MissingWorkers::usual_ns(OpIndex op, std::size_t dp_rank) {
  const auto [found, is_new] = usual_.try_emplace({op, dp_rank}, 0);
  if (is_new) found->second = median_of_lanes(op, dp_rank, table_.dp_size());
  return found->second;
}

double MissingWorkers::microbatch_factor(OpIndex op, std::size_t lane) {
  const Op& it = graph_.op(op);
  if (it.microbatch < 0) return 1;
  std::vector<double> ratios;
  for (OpIndex other : ops_of_microbatch_.at({it.kind, it.microbatch})) {
    if (graph_.is_communication(other) || !table_.recorded().has(other, lane)) continue;
    const double usual = usual_ns(other, lane % table_.dp_size());
    if (usual > 0) ratios.push_back((table_.ends_ns(other)[lane] - table_.starts_ns(other)[lane]) / usual);
  }
  return ratios.empty() ? 1 : median(ratios);
}

double MissingWorkers::median_of_lanes(OpIndex op, std::size_t first, std::size_t stride) const {
  std::vector<double> values;
  for (std::size_t lane = first; lane < table_.lane_count(); lane += stride) {
    if (table_.recorded().has(op, lane)) values.push_back(table_.ends_ns(op)[lane] - table_.starts_ns(op)[lane]);
  }
  return median(values);
}

double lower_median(std::vector<double>& values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace smon_rt::analysis
