#include "analysis/order_merge.h"

#include <algorithm>
#include <functional>
#include <queue>

namespace smon_rt::analysis {

std::optional<std::pair<std::uint32_t, std::uint32_t>> OrderMerge::add(std::span<const std::uint32_t> sequence) {
  std::vector<std::uint32_t> added_to;
  if (agrees(sequence)) {
    add_edges(sequence, added_to);
    return std::nullopt;
  }
  const std::vector<std::uint32_t> order = order_;
  const std::vector<std::uint32_t> position = position_;
  for (std::uint32_t item : sequence) {
    if (position_[item] != kUnknown) continue;
    position_[item] = static_cast<std::uint32_t>(order_.size());
    order_.push_back(item);
  }
  add_edges(sequence, added_to);
  if (sort()) return std::nullopt;
  for (std::uint32_t item : added_to) next_[item].pop_back();
  order_ = order;
  position_ = position;
  for (std::size_t i = 1; i < sequence.size(); ++i) {
    if (reaches(sequence[i], sequence[i - 1])) return std::pair(sequence[i - 1], sequence[i]);
  }
  // The circle goes through more than one pair of the sequence: the first and the last say enough.
  return std::pair(sequence.front(), sequence.back());
}

// All known, and in ascending order already.
bool OrderMerge::agrees(std::span<const std::uint32_t> sequence) const {
  for (std::size_t i = 0; i < sequence.size(); ++i) {
    if (position_[sequence[i]] == kUnknown) return false;
    if (i > 0 && position_[sequence[i - 1]] >= position_[sequence[i]]) return false;
  }
  return true;
}

void OrderMerge::add_edges(std::span<const std::uint32_t> sequence, std::vector<std::uint32_t>& added_to) {
  for (std::size_t i = 1; i < sequence.size(); ++i) {
    std::vector<std::uint32_t>& next = next_[sequence[i - 1]];
    if (std::find(next.begin(), next.end(), sequence[i]) != next.end()) continue;
    next.push_back(sequence[i]);
    added_to.push_back(sequence[i - 1]);
  }
}

// Sorts order_ anew, keeping what may stay where it is; false for a circle.
bool OrderMerge::sort() {
  std::vector<std::uint32_t> waits(next_.size(), 0);
  for (std::uint32_t item : order_) {
    for (std::uint32_t after : next_[item]) ++waits[after];
  }
  // By old position: without need nothing moves.
  std::priority_queue<std::uint32_t, std::vector<std::uint32_t>, std::greater<>> ready;
  for (std::uint32_t item : order_) {
    if (waits[item] == 0) ready.push(position_[item]);
  }
  std::vector<std::uint32_t> sorted;
  while (!ready.empty()) {
    const std::uint32_t item = order_[ready.top()];
    ready.pop();
    sorted.push_back(item);
    for (std::uint32_t after : next_[item]) {
      if (--waits[after] == 0) ready.push(position_[after]);
    }
  }
  if (sorted.size() < order_.size()) return false;
  order_ = std::move(sorted);
  for (std::size_t i = 0; i < order_.size(); ++i) position_[order_[i]] = static_cast<std::uint32_t>(i);
  return true;
}

bool OrderMerge::reaches(std::uint32_t from, std::uint32_t to) const {
  std::vector<bool> seen(next_.size(), false);
  std::vector<std::uint32_t> open = {from};
  while (!open.empty()) {
    const std::uint32_t item = open.back();
    open.pop_back();
    if (item == to) return true;
    if (seen[item]) continue;
    seen[item] = true;
    open.insert(open.end(), next_[item].begin(), next_[item].end());
  }
  return false;
}

}  // namespace smon_rt::analysis
