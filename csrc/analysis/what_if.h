#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "analysis/op_graph.h"
#include "analysis/op_timing.h"
#include "analysis/simulator.h"

namespace smon_rt::analysis {

using OpPredicate = std::function<bool(const Op&)>;

/// Called as each replay begins with (its number from 1, total), and again within a long one; false stops the analysis.
using Progress = std::function<bool(int done, int total)>;

/// A set of (dp_rank, stage) cells.
class WorkerSet {
 public:
  WorkerSet(std::size_t dp_size, std::size_t pp_size) : pp_size_(pp_size), contains_(dp_size * pp_size, false) {}
  void add(std::size_t dp_rank, std::size_t stage) { contains_[dp_rank * pp_size_ + stage] = true; }
  bool contains(std::size_t dp_rank, std::size_t stage) const { return contains_[dp_rank * pp_size_ + stage]; }
  std::vector<std::pair<std::size_t, std::size_t>> workers() const;

 private:
  std::size_t pp_size_;
  std::vector<bool> contains_;
};

/// A job taken apart into graph, durations and launch delays, and the scenarios that can be asked of it.
/// Borrows its parts; all scenarios point into `timing`.
/// nodelay: recorded durations, no launch delays. ideal: one duration per kind, no launch delays.
class WhatIf {
 public:
  WhatIf(const OpGraph& graph, const OpTiming& timing, std::size_t dp_size, std::size_t pp_size);

  const OpGraph& graph() const { return graph_; }
  const OpTiming& timing() const { return timing_; }
  const Simulator& simulator() const { return simulator_; }
  std::size_t dp_size() const { return dp_size_; }
  std::size_t pp_size() const { return pp_size_; }
  std::size_t step_count() const { return timing_.lane_count / dp_size_; }
  const std::vector<double>& ideal_durations() const { return ideal_; }

  /// As recorded, launch delays included: replays to the recorded steps.
  Scenario recorded() const;
  Scenario nodelay() const;
  Scenario ideal() const;
  Scenario ideal_except(const OpPredicate& keeps_recorded) const;
  Scenario ideal_except(const WorkerSet& keeps_recorded) const;
  Scenario nodelay_except(const OpPredicate& becomes_ideal) const;
  Scenario nodelay_except(const WorkerSet& becomes_ideal) const;
  /// nodelay plus the launch delays of the chosen ops, or of one dp rank.
  Scenario nodelay_with_launch_delays(const OpPredicate& keeps_delay) const;
  Scenario nodelay_with_launch_delays(std::size_t dp_rank) const;
  /// nodelay plus these launch delays, indexed as those of the timing. Borrowed.
  Scenario nodelay_with(const LaneBuffer& launch_delays_ns) const;

 private:
  OpValues recorded_duration(OpIndex op) const { return {timing_.durations(op), 0, nullptr}; }
  OpValues ideal_duration(OpIndex op) const { return {nullptr, ideal_[op], nullptr}; }
  const OpGraph& graph_;
  const OpTiming& timing_;
  std::size_t dp_size_;
  std::size_t pp_size_;
  Simulator simulator_;
  std::vector<double> ideal_;  // per op
};

}  // namespace smon_rt::analysis
