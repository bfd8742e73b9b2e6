#include "agent/tried_marks.h"

#include <utility>

namespace smon_rt {

bool TriedMarks::mark(Label label, std::string reason) {
  return label != kInitialState && marks_.try_emplace(label, std::move(reason)).second;
}

void TriedMarks::count_load(Label label) {
  if (label != kInitialState) {
    ++loads_[label];
  }
}

std::vector<TriedMarks::Mark> TriedMarks::mark_worn() {
  std::vector<Mark> marks;
  for (const auto& [label, count] : loads_) {
    Mark worn{label, "loaded " + std::to_string(count) + " times, and each time no newer step was agreed"};
    if (count >= max_loads_ && mark(label, worn.reason)) {
      marks.push_back(std::move(worn));
    }
  }
  return marks;
}

void TriedMarks::forget_loads_before(Label agreed) {
  loads_.erase(loads_.begin(), loads_.lower_bound(agreed));
}

std::string TriedMarks::reason(Label label) const {
  const auto found = marks_.find(label);
  return found == marks_.end() ? std::string() : found->second;
}

std::vector<TriedMarks::Mark> TriedMarks::all() const {
  std::vector<Mark> all;
  for (const auto& [label, reason] : marks_) {
    all.push_back({label, reason});
  }
  return all;
}

}  // namespace smon_rt
