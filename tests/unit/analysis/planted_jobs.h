#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <random>
#include <vector>

#include "job_builder.h"

namespace smon_rt::analysis::testing {

/// Computes of a second or two, so that whole nanoseconds are 1e-9 of them, times factors that tests plant.
struct PlantedJob {
  int dp_size = 4;
  int pp_size = 4;
  int microbatches = 6;
  int steps = 5;
  std::function<double(const Row&)> worker = [](const Row&) { return 1.0; };
  std::function<double(int)> stage = [](int) { return 1.0; };
  std::function<double(const Row&)> microbatch = [](const Row&) { return 1.0; };
  std::function<double(const Row&)> noise = [](const Row&) { return 1.0; };
  double optimizer = 1;  // of the worker (1, 0)
  double scale = 1;

  JobSpec spec() const {
    JobSpec spec;
    spec.dp_size = dp_size;
    spec.pp_size = pp_size;
    spec.microbatches = microbatches;
    spec.steps = steps;
    spec.duration = [planted = *this](const Row& row) { return planted.duration_ns(row); };
    return spec;
  }

  std::int64_t duration_ns(const Row& row) const {
    double ns = 1e6;
    if (row.kind == Kind::kForwardCompute || row.kind == Kind::kBackwardCompute) {
      ns = row.kind == Kind::kForwardCompute ? 1e9 : 2e9;
      ns *= worker(row) * stage(row.stage) * microbatch(row) * noise(row);
    } else if (row.kind == Kind::kOptimizer) {
      ns = 1e9 * (row.dp_rank == 1 && row.stage == 0 ? optimizer : 1);
    }
    return std::llround(ns * scale);
  }
};

inline std::function<double(const Row&)> slow_worker(int dp_rank, int stage, double factor) {
  return [=](const Row& row) { return row.dp_rank == dp_rank && row.stage == stage ? factor : 1.0; };
}

/// A standard normal number that is the same for the same numbers.
inline double normal(std::initializer_list<std::int64_t> numbers) {
  std::vector<std::uint32_t> parts;
  for (std::int64_t number : numbers) parts.push_back(static_cast<std::uint32_t>(number));
  std::seed_seq seed(parts.begin(), parts.end());
  std::mt19937 random(seed);
  return std::normal_distribution<double>()(random);
}

/// Of a microbatch, the same on all stages, forward and backward; their median is near 1.
inline std::function<double(const Row&)> lengths(double spread) {
  return [=](const Row& row) { return std::exp(spread * normal({row.step, row.dp_rank, row.seq_id})); };
}

/// Of each op by itself.
inline std::function<double(const Row&)> noise_of(double spread) {
  return [=](const Row& row) {
    return std::exp(spread * normal({static_cast<int>(row.kind), row.step, row.dp_rank, row.stage, row.seq_id, 17}));
  };
}

}  // namespace smon_rt::analysis::testing
