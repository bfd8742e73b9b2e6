#include "analysis/by_worker.h"

#include <algorithm>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

// Several workers are one place where each has this part of what the one with the most has.
constexpr double kOfTheGroupShare = 0.25;

}  // namespace

double ByWorker::of_peers(std::size_t dp_rank, std::size_t stage) const {
  std::vector<double> others;
  for (std::size_t other = 0; dp_size_ > 1 && other < dp_size_; ++other) {
    if (other != dp_rank) others.push_back(values_[other * pp_size_ + stage]);
  }
  for (std::size_t other = 0; dp_size_ == 1 && other < pp_size_; ++other) {
    if (other != stage) others.push_back(values_[other]);
  }
  return median(others);
}

double ByWorker::of_others(HostPlace place) const {
  std::vector<double> others;
  if (place.stage < 0) {
    const std::vector<double> sums = by_dp_rank();
    for (std::size_t i = 0; i < sums.size(); ++i) {
      if (static_cast<int>(i) != place.dp_rank) others.push_back(sums[i]);
    }
  } else {
    const auto own = static_cast<std::size_t>(place.dp_rank) * pp_size_ + static_cast<std::size_t>(place.stage);
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (i != own) others.push_back(values_[i]);
    }
  }
  return median(others);
}

double ByWorker::mean_of_all() const {
  return mean(values_);
}

double ByWorker::of(HostPlace place) const {
  const auto dp_rank = static_cast<std::size_t>(place.dp_rank);
  return place.stage < 0 ? by_dp_rank()[dp_rank] : at(dp_rank, static_cast<std::size_t>(place.stage));
}

HostPlace ByWorker::largest() const {
  const auto found = std::max_element(values_.begin(), values_.end()) - values_.begin();
  const auto pp_size = static_cast<std::ptrdiff_t>(pp_size_);
  return {static_cast<int>(found / pp_size), static_cast<int>(found % pp_size)};
}

std::vector<HostPlace> ByWorker::standing_out(double ratio, const std::vector<bool>& is_recorded) const {
  std::vector<double> recorded;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (is_recorded[i]) recorded.push_back(values_[i]);
  }
  const double usual = median(recorded);
  const double least = std::max(ratio * usual, kOfTheGroupShare * *std::max_element(values_.begin(), values_.end()));
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < values_.size(); ++i) {
    if (values_[i] > 0 && values_[i] >= least) found.push_back(i);
  }
  if (found.size() < 2 || 2 * found.size() > recorded.size()) return {};
  std::stable_sort(found.begin(), found.end(), [&](std::size_t a, std::size_t b) { return values_[a] > values_[b]; });
  std::vector<HostPlace> places;
  for (std::size_t i : found) places.push_back({static_cast<int>(i / pp_size_), static_cast<int>(i % pp_size_)});
  return places;
}

double ByWorker::ratio_of(const std::vector<HostPlace>& group) const {
  std::vector<double> own, others = values_;
  for (HostPlace place : group) {
    own.push_back(of(place));
    others[static_cast<std::size_t>(place.dp_rank) * pp_size_ + static_cast<std::size_t>(place.stage)] = -1;
  }
  std::erase(others, -1.0);
  const double usual = median(others);
  return usual > 0 ? median(own) / usual : 0;
}

HostPlace ByWorker::largest_dp_rank() const {
  const std::vector<double> sums = by_dp_rank();
  return {static_cast<int>(std::max_element(sums.begin(), sums.end()) - sums.begin()), -1};
}

std::vector<double> ByWorker::by_dp_rank() const {
  std::vector<double> sums(dp_size_);
  for (std::size_t i = 0; i < values_.size(); ++i) sums[i / pp_size_] += values_[i];
  return sums;
}

}  // namespace smon_rt::analysis
