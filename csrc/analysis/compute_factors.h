#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "analysis/member_excess.h"
#include "analysis/what_if.h"

namespace smon_rt::analysis {

/// How the microbatches of a job vary, worker and stage apart. NaN where nothing varies or pairs up.
struct MicrobatchEvidence {
  double correlation = 0;  // of a microbatch's forward with its backward
  double forward_cv = 0;   // standard deviation of its forward over the mean

  /// Long forwards with long backwards, that vary more than noise does: sequences of different lengths.
  bool is_sequence_length() const { return correlation >= 0.9 && forward_cv >= 0.10; }
};

/// What forwards and backwards take, robustly taken apart, for each of them:
///
///     duration = stage · worker · microbatch (common to all stages and chunks) · what is left, which is noise
///
/// worker: its median over that of the other workers of its stage that are no stragglers, so that none is in its own
/// yardstick, nor in another's. stage: what is typical of it over what is typical of the other stages. Where the
/// workers of a stage are of two kinds, clearly apart, the faster ones are typical, be they only half of them:
/// stragglers are slow, not fast. microbatch: the median over stages of what is left, relative to the job's median
/// microbatch.
///
/// Workers of one dp rank share its microbatches, and with them how long these happen to be: what all workers of a dp
/// rank have in common is theirs only where it is much more than that chance explains.
class ComputeFactors {
 public:
  explicit ComputeFactors(const WhatIf& what_if);

  /// Of an optimizer, which runs once a step, only a worker's factor is told, from kLeastOptimizerRatio on: stages have
  /// their own number of parameters.
  static constexpr std::array kKinds = {Kind::kForwardCompute, Kind::kBackwardCompute, Kind::kForwardBackwardCombined,
                                        Kind::kOptimizer};
  static constexpr std::size_t kOptimizerPass = 3;
  static constexpr double kLeastOptimizerRatio = 1.1;
  static constexpr std::size_t kPassCount = kKinds.size();

  /// How many times as long as elsewhere; 1 where there is no elsewhere, or nothing is known.
  double worker(std::size_t pass, std::size_t dp_rank, std::size_t stage) const {
    return passes_[pass].worker[dp_rank * pp_size_ + stage];
  }
  double stage(std::size_t pass, std::size_t stage) const { return passes_[pass].stage[stage]; }
  /// What the op's microbatch takes of what the median one does, one value per lane; null: it has none of its own.
  const double* microbatch(std::size_t pass, std::size_t op_number) const;
  /// What an op takes without noise, given its microbatch's factor; NaN where nothing is known of its worker.
  double usual_ns(std::size_t pass, std::size_t op_number, std::size_t dp_rank) const {
    return passes_[pass].expected[passes_[pass].place_of[op_number] * dp_size_ + dp_rank];
  }
  /// The ops of a pass, in the order of `op_number`.
  const std::vector<OpIndex>& ops(std::size_t pass) const { return passes_[pass].ops; }

  /// Time in all steps, all passes together, that a worker or stage spends beyond what it would without its factor, and
  /// how many times as long as that it takes.
  struct Excess {
    double ns = 0;
    double ratio = 1;
  };
  Excess worker_excess(std::size_t dp_rank, std::size_t stage) const;
  Excess stage_excess(std::size_t stage) const;

  const MicrobatchEvidence& evidence() const { return evidence_; }

 private:
  struct Pass {
    std::vector<OpIndex> ops;
    std::vector<std::uint32_t> place_of;       // by op number: its stage and chunk
    std::vector<std::uint32_t> microbatch_of;  // by op number
    std::vector<std::size_t> stage_of_place;
    std::size_t microbatch_count = 0;
    std::vector<double> medians;    // [place · dp_size + dp_rank]
    std::vector<double> expected;   // the same, of a median microbatch
    std::vector<double> spent;      // total of a worker, [dp_rank · pp_size + stage]
    std::vector<double> log_cells;  // logarithm of a worker's medians added up
    double least_gap = 0;           // logarithm
    std::vector<double> worker, stage;
    std::vector<double> microbatches;  // [microbatch · lane_count + lane]; NaN: the lane has no such microbatch
  };

  void collect(const WhatIf& what_if, std::size_t pass);
  void take_medians(const WhatIf& what_if, Pass& pass) const;
  void take_microbatches(const WhatIf& what_if, Pass& pass) const;
  void split_cells(Pass& pass) const;
  std::vector<double> shared_by_rank(const Pass& pass) const;
  std::vector<double> chance_of_rank(const Pass& pass) const;
  double least_gap(const Pass& pass, const std::vector<double>& chance) const;
  void compare_places(Pass& pass, const std::vector<double>& shared, const std::vector<double>& kept) const;
  void keep_slow_optimizers(Pass& pass) const;
  void weigh_evidence();

  std::size_t dp_size_;
  std::size_t pp_size_;
  std::size_t lane_count_;
  std::array<Pass, kPassCount> passes_;
  MicrobatchEvidence evidence_;
};

/// The factors of the job in which the members of each worker are alike.
ComputeFactors compute_factors(const WhatIf& what_if, std::span<const MemberExcess> excess);

}  // namespace smon_rt::analysis
