#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
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
  std::vector<double> removed_step_ns;
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

/// The job without launch delays and without one possible cause: step times of that replay.
struct Removal {
  std::string name;
  std::vector<double> step_ns;
};

/// What the removal of work of the host means.
enum class HostRemoval : std::uint8_t {
  kToMean,    // gc at its mean, as the published analyzer has it; no data loading
  kVanishes,  // gc and data loading take no time: a collection that happens in few steps has a mean of its own
};

/// Removals of communication, gc, optimizer, uneven microbatches, one worker, one stage, and of all at once.
std::vector<Removal> removals(const WhatIf& what_if, std::pair<std::size_t, std::size_t> worst_worker,
                              std::size_t worst_stage, ReplayCounter& counter,
                              HostRemoval host_removal = HostRemoval::kToMean);
int removal_replay_count(HostRemoval host_removal = HostRemoval::kToMean);

}  // namespace smon_rt::analysis
