#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "analysis/slowdowns.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// How much of the loss T_nodelay − T_ideal a set of workers explains. Step times are means, in nanoseconds.
struct Contribution {
  std::vector<std::pair<std::size_t, std::size_t>> workers;  // (dp_rank, stage)
  double removed_ns = 0;                                     // nodelay with the set's ops made ideal
  double added_ns = 0;                                       // ideal with the set's ops as recorded
  double ratio = 0;        // share of the loss given back by removal: M_W, M_S. Not clamped; NaN without a loss
  double added_ratio = 0;  // share of the loss that adding causes
};

/// Step times of the job without launch delays and of the ideal one, last op of any kind included.
struct LossRange {
  double nodelay_ns = 0;
  double ideal_ns = 0;
};

Contribution contribution_of(const WhatIf& what_if, const WorkerSet& set, const LossRange& range,
                             ReplayCounter& counter);

/// The slowest 3 % of the recorded ranks: (3 · R + 99) div 100 of them, those with the largest score; equal scores go
/// to the lower rank. `scores` and `ranks` are per worker, [dp_rank · pp_size + stage]; a rank of -1 was not recorded.
WorkerSet slowest_workers(const std::vector<double>& scores, const std::vector<std::int32_t>& ranks,
                          std::size_t dp_size, std::size_t pp_size);

}  // namespace smon_rt::analysis
