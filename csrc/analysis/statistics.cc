#include "analysis/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace smon_rt::analysis {
namespace {

constexpr std::size_t kMinWindowCount = 8;
constexpr std::size_t kBlockLength = 5;
constexpr int kResampleCount = 1000;

struct Block {
  std::size_t begin = 0;
  std::size_t length = 0;
};

std::vector<Block> consecutive_runs(std::span<const std::int64_t> steps) {
  std::vector<Block> runs;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    // Compared without adding: the step before may be the largest number there is.
    const bool continues = i > 0 && steps[i] > steps[i - 1] && steps[i] - 1 == steps[i - 1];
    if (continues) {
      ++runs.back().length;
    } else {
      runs.push_back({i, 1});
    }
  }
  return runs;
}

// Overlapping stretches, those at the end going on at the beginning: else the first and last steps would be drawn less
// often than others, and what only they have would not count (the circular block bootstrap of Politis and Romano).
std::vector<Block> moving_blocks(std::size_t count) {
  const std::size_t length = std::clamp(count / 2, std::size_t{1}, kBlockLength);
  std::vector<Block> blocks;
  for (std::size_t begin = 0; begin < count; ++begin) blocks.push_back({begin, length});
  return blocks;
}

double resampled_mean(std::span<const double> values, std::span<const Block> blocks, std::minstd_rand& random) {
  double sum = 0;
  std::size_t count = 0;
  while (count < values.size()) {
    const Block& block = blocks[random() % blocks.size()];
    for (std::size_t i = 0; i < block.length; ++i) sum += values[(block.begin + i) % values.size()];
    count += block.length;
  }
  return sum / static_cast<double>(count);
}

}  // namespace

double mean(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

double median(std::span<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double finite_median(std::vector<double>& values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values.empty() ? std::numeric_limits<double>::quiet_NaN() : median(values);
}

Interval bootstrap_mean(std::span<const double> values, std::span<const std::int64_t> steps) {
  if (values.size() < 2) return {};
  std::vector<Block> blocks = consecutive_runs(steps);
  if (blocks.size() < kMinWindowCount) blocks = moving_blocks(values.size());
  std::minstd_rand random(20251);
  std::vector<double> means(kResampleCount);
  for (double& resampled : means) resampled = resampled_mean(values, blocks, random);
  std::sort(means.begin(), means.end());
  return {means[kResampleCount / 40], means[kResampleCount - 1 - kResampleCount / 40], true};
}

}  // namespace smon_rt::analysis
