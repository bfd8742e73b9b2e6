#include "analysis/compute_causes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

using Worker = std::pair<std::size_t, std::size_t>;

// From so much slower than its peers on a place stands out, and beyond so many sigma where there are enough to tell a
// sigma.
constexpr double kLeastRatio = 1.03;
constexpr double kOutlierSigma = 3;
constexpr std::size_t kEnoughForSigma = 8;
constexpr std::size_t kWorkersTried = 3;
constexpr std::size_t kStagesTried = 2;

// Divides the op's durations in the lanes of a dp rank, or in all.
void divide(JobEdit& edit, const WhatIf& what_if, OpIndex op, double factor, std::size_t first, std::size_t stride) {
  if (factor == 1) return;
  double* durations = edit.durations_ns(op);
  for (std::size_t lane = first; lane < what_if.timing().lane_count; lane += stride) durations[lane] /= factor;
}

// Those that stand out, slowest first. Peers are no stragglers, so what is not slow lies about 1, and chance is seen in
// what is faster: any number may be slow.
template <typename Place>
std::vector<Place> outliers(std::vector<std::pair<double, Place>> ratios) {
  std::vector<double> faster_by;
  for (const auto& [ratio, place] : ratios) {
    if (ratio <= 1) faster_by.push_back(-std::log(ratio));
  }
  double least = std::log(kLeastRatio);
  if (ratios.size() >= kEnoughForSigma) {
    least = std::max(least, kOutlierSigma * kSigmaPerDeviation * median(faster_by));
  }
  std::stable_sort(ratios.begin(), ratios.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<Place> found;
  for (const auto& [ratio, place] : ratios) {
    if (found.empty() || std::log(ratio) >= least) found.push_back(place);
  }
  return found;
}

class ComputeCauses {
 public:
  ComputeCauses(const WhatIf& what_if, const ComputeFactors& factors, const CauseBasis& basis, ReplayCounter& counter,
                std::span<const MemberExcess> excess)
      : what_if_(what_if),
        factors_(factors),
        basis_(basis),
        keeps_(basis.keeps_launch_delays),
        counter_(counter),
        excess_(excess) {}

  std::vector<CauseRemoval> find() && {
    if (what_if_.dp_size() > 1) find_workers();
    if (what_if_.pp_size() > 1) find_stages();
    if (factors_.evidence().is_sequence_length()) {
      add(of_microbatches("sequence_length"), with_even_microbatches(what_if_, factors_, keeps_));
    }
    add(of_microbatches("noise"), without_noise(what_if_, factors_, keeps_, excess_));
    return std::move(result_);
  }

 private:
  bool replay(CauseRemoval& removal, const Scenario& scenario) {
    if (!counter_.next()) return false;
    basis_.set_steps(removal, basis_.before_ns(), what_if_.simulator().replay(scenario).last);
    return true;
  }

  void add(CauseRemoval removal, const Scenario& scenario) {
    if (replay(removal, scenario)) result_.push_back(std::move(removal));
  }

  void sort_by_gain(std::vector<CauseRemoval>& found) const {
    std::stable_sort(found.begin(), found.end(), [&](const CauseRemoval& a, const CauseRemoval& b) {
      return basis_.gain_ns(a) > basis_.gain_ns(b);
    });
  }

  // The one that gives back most, and what else is worth a line.
  void keep(std::vector<CauseRemoval> found) {
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i == 0 || basis_.is_worth_placing(found[i])) result_.push_back(std::move(found[i]));
    }
  }

  void find_workers() {
    std::vector<std::pair<double, Worker>> ratios;
    for (std::size_t dp_rank = 0; dp_rank < what_if_.dp_size(); ++dp_rank) {
      for (std::size_t stage = 0; stage < what_if_.pp_size(); ++stage) {
        ratios.push_back({factors_.worker_excess(dp_rank, stage).ratio, {dp_rank, stage}});
      }
    }
    const std::vector<Worker> slow = outliers(std::move(ratios));
    std::vector<CauseRemoval> found;
    for (std::size_t i = 0; i < std::min(slow.size(), kWorkersTried); ++i) {
      CauseRemoval removal = worker_at(slow[i]);
      if (!replay(removal, without_slow_workers(what_if_, factors_, {&slow[i], 1}, keeps_))) return;
      found.push_back(std::move(removal));
    }
    sort_by_gain(found);
    if (slow.size() > 1) {
      CauseRemoval all = found.front();
      all.workers = slow;
      if (!replay(all, without_slow_workers(what_if_, factors_, slow, keeps_))) return;
      if (basis_.gain_ns(found.front()) < kOnePlaceShare * basis_.gain_ns(all)) found.assign(1, std::move(all));
    }
    keep(std::move(found));
  }

  void find_stages() {
    std::vector<std::pair<double, std::size_t>> ratios;
    for (std::size_t stage = 0; stage < what_if_.pp_size(); ++stage) {
      ratios.emplace_back(factors_.stage_excess(stage).ratio, stage);
    }
    const std::vector<std::size_t> slow = outliers(std::move(ratios));
    std::vector<CauseRemoval> found;
    for (std::size_t i = 0; i < std::min(slow.size(), kStagesTried); ++i) {
      CauseRemoval removal = stage_at(slow[i]);
      if (!replay(removal, without_slow_stage(what_if_, factors_, slow[i], keeps_))) return;
      found.push_back(std::move(removal));
    }
    sort_by_gain(found);
    keep(std::move(found));
  }

  CauseRemoval worker_at(Worker worker) const {
    CauseRemoval removal;
    removal.cause = "worker";
    removal.dp_rank = static_cast<int>(worker.first);
    removal.stage = static_cast<int>(worker.second);
    removal.workers = {worker};
    add_ratios(removal, [&](std::size_t pass) { return factors_.worker(pass, worker.first, worker.second); });
    return removal;
  }

  CauseRemoval stage_at(std::size_t stage) const {
    CauseRemoval removal;
    removal.cause = "stage";
    removal.stage = static_cast<int>(stage);
    if (what_if_.dp_size() == 1 && stage + 1 < what_if_.pp_size()) {
      removal.cause = "worker";
      removal.dp_rank = 0;
      removal.workers = {{0, stage}};
    }
    add_ratios(removal, [&](std::size_t pass) { return factors_.stage(pass, stage); });
    return removal;
  }

  template <typename FactorOf>
  void add_ratios(CauseRemoval& removal, FactorOf factor_of) const {
    if (!factors_.ops(0).empty()) removal.detail.emplace_back("forward_compute_ratio", factor_of(0));
    if (!factors_.ops(1).empty()) removal.detail.emplace_back("backward_compute_ratio", factor_of(1));
    const double optimizer = factor_of(ComputeFactors::kOptimizerPass);
    if (optimizer > 1) removal.detail.emplace_back("optimizer_ratio", optimizer);
  }

  CauseRemoval of_microbatches(const char* cause) const {
    CauseRemoval removal;
    removal.cause = cause;
    removal.detail.emplace_back("correlation", factors_.evidence().correlation);
    removal.detail.emplace_back("forward_cv", factors_.evidence().forward_cv);
    return removal;
  }

  const WhatIf& what_if_;
  const ComputeFactors& factors_;
  const CauseBasis& basis_;
  bool keeps_;  // launch delays
  ReplayCounter& counter_;
  std::span<const MemberExcess> excess_;
  std::vector<CauseRemoval> result_;
};

}  // namespace

void repair_workers(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors,
                    std::span<const Worker> workers) {
  for (std::size_t pass = 0; pass < ComputeFactors::kPassCount; ++pass) {
    for (OpIndex op : factors.ops(pass)) {
      for (const auto& [dp_rank, stage] : workers) {
        if (static_cast<std::size_t>(what_if.graph().op(op).stage) != stage) continue;
        divide(edit, what_if, op, factors.worker(pass, dp_rank, stage), dp_rank, what_if.dp_size());
      }
    }
  }
}

void repair_stage(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors, std::size_t stage) {
  for (std::size_t pass = 0; pass < ComputeFactors::kPassCount; ++pass) {
    for (OpIndex op : factors.ops(pass)) {
      if (static_cast<std::size_t>(what_if.graph().op(op).stage) != stage) continue;
      divide(edit, what_if, op, factors.stage(pass, stage), 0, 1);
    }
  }
}

void even_out_microbatches(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors) {
  for (std::size_t pass = 0; pass < ComputeFactors::kPassCount; ++pass) {
    for (std::size_t i = 0; i < factors.ops(pass).size(); ++i) {
      const double* microbatches = factors.microbatch(pass, i);
      if (microbatches == nullptr) break;
      double* durations = edit.durations_ns(factors.ops(pass)[i]);
      for (std::size_t lane = 0; lane < what_if.timing().lane_count; ++lane) {
        if (microbatches[lane] > 0) durations[lane] /= microbatches[lane];
      }
    }
  }
}

Scenario without_slow_workers(const WhatIf& what_if, const ComputeFactors& factors, std::span<const Worker> workers,
                              bool has_launch_delays) {
  JobEdit edit(what_if, has_launch_delays);
  repair_workers(edit, what_if, factors, workers);
  return std::move(edit).take();
}

Scenario without_slow_stage(const WhatIf& what_if, const ComputeFactors& factors, std::size_t stage,
                            bool has_launch_delays) {
  JobEdit edit(what_if, has_launch_delays);
  repair_stage(edit, what_if, factors, stage);
  return std::move(edit).take();
}

Scenario with_even_microbatches(const WhatIf& what_if, const ComputeFactors& factors, bool has_launch_delays) {
  JobEdit edit(what_if, has_launch_delays);
  even_out_microbatches(edit, what_if, factors);
  return std::move(edit).take();
}

Scenario without_noise(const WhatIf& what_if, const ComputeFactors& factors, bool has_launch_delays,
                       std::span<const MemberExcess> excess) {
  const bool keeps_microbatches = factors.evidence().is_sequence_length();
  JobEdit edit(what_if, has_launch_delays);
  const OpTiming& timing = what_if.timing();
  for (std::size_t pass = 0; pass < ComputeFactors::kOptimizerPass; ++pass) {
    for (std::size_t i = 0; i < factors.ops(pass).size(); ++i) {
      const OpIndex op = factors.ops(pass)[i];
      const double* microbatches = keeps_microbatches ? factors.microbatch(pass, i) : nullptr;
      double* durations = edit.durations_ns(op);
      for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
        const double factor = microbatches == nullptr ? 1 : microbatches[lane];
        const double usual = factor * factors.usual_ns(pass, i, lane % what_if.dp_size());
        if (usual > 0 && timing.counted.has(op, lane)) durations[lane] = usual;
      }
    }
  }
  for (const MemberExcess& each : excess) edit.durations_ns(each.op)[each.lane] += each.ns;
  return std::move(edit).take();
}

std::vector<CauseRemoval> compute_causes(const WhatIf& what_if, const ComputeFactors& factors, const CauseBasis& basis,
                                         ReplayCounter& counter, std::span<const MemberExcess> excess) {
  return ComputeCauses(what_if, factors, basis, counter, excess).find();
}

}  // namespace smon_rt::analysis
