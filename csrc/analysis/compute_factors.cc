#include "analysis/compute_factors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
// Standard deviations of a median in one of a mean, of a normal distribution.
constexpr double kSigmaOfMedian = 1.2533;
// What a dp rank's workers share is theirs from so many sigma of chance on: the largest of many ranks reaches three.
constexpr double kSigmaBeyondChance = 4;
constexpr double kLeastSharedRatio = 1.03;
// Two groups of workers are so many sigma of one worker's median apart.
constexpr double kSigmaApart = 3;
// Stragglers are so many times as far from the slowest other as this is from the middle of the others.
constexpr double kGapPerSpread = 2;
// Further out than so many sigma a microbatch counts as if it were there: a pause within a compute is no length.
constexpr double kClippingSigma = 4;

// A microbatch by its id, or by its number among the ops of its place where ids are not recorded.
class MicrobatchNumbers {
 public:
  std::uint32_t of(const Op& op, std::size_t number_in_place) {
    const std::int64_t id = op.microbatch >= 0 ? op.microbatch : static_cast<std::int64_t>(number_in_place);
    return numbers_.try_emplace({op.microbatch >= 0, id}, static_cast<std::uint32_t>(numbers_.size())).first->second;
  }

 private:
  std::map<std::pair<bool, std::int64_t>, std::uint32_t> numbers_;
};

void keep_finite(std::vector<double>& values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
}

// The slowest that is no straggler, of logarithms: up to where a gap ends at least half of all, so wide that neither
// chance (`least_gap`) nor how the faster ones differ explains it. Infinity: all are of one kind.
double straggler_limit(std::vector<double> values, double least_gap) {
  keep_finite(values);
  std::sort(values.begin(), values.end());
  for (std::size_t count = (values.size() + 1) / 2; count > 0 && count < values.size(); ++count) {
    const double slowest = values[count - 1];
    const double spread = slowest - values[(count - 1) / 2];
    if (values[count] - slowest >= std::max(least_gap, kGapPerSpread * spread)) return slowest;
  }
  return std::numeric_limits<double>::infinity();
}

// Of two groups the faster one's: stragglers are slow, not fast. With two the smaller.
double typical(std::vector<double>& scratch, double least_gap) {
  keep_finite(scratch);
  if (scratch.size() == 2) return std::min(scratch[0], scratch[1]);
  const double limit = straggler_limit(scratch, least_gap);
  std::erase_if(scratch, [=](double value) { return value > limit; });
  return finite_median(scratch);
}

// Of two groups the one nearer to 0, and of two values: it takes all to have something in common.
double common(std::vector<double>& scratch, double least_gap) {
  keep_finite(scratch);
  std::vector<double> sizes;
  for (double value : scratch) sizes.push_back(std::abs(value));
  if (scratch.size() == 2) return sizes[0] < sizes[1] ? scratch[0] : scratch[1];
  const double limit = straggler_limit(std::move(sizes), least_gap);
  std::erase_if(scratch, [=](double value) { return std::abs(value) > limit; });
  return finite_median(scratch);
}

double robust_sigma(std::vector<double>& scratch, double middle) {
  for (double& value : scratch) value = std::abs(value - middle);
  return kSigmaPerDeviation * finite_median(scratch);
}

double exp_or_one(double logarithm) {
  return std::isfinite(logarithm) ? std::exp(logarithm) : 1;
}

// Pairs of logarithms, each without its median and clipped.
void clip(std::vector<double>& values) {
  std::vector<double> scratch = values;
  const double middle = finite_median(scratch);
  scratch = values;
  const double limit = kClippingSigma * robust_sigma(scratch, middle);
  for (double& value : values) value = limit > 0 ? std::clamp(value - middle, -limit, limit) : value - middle;
}

struct Moments {
  double xx = 0, xy = 0, yy = 0;
};

Moments moments_of(const std::vector<double>& x, const std::vector<double>& y) {
  Moments sum;
  const double mean_x = mean(x), mean_y = mean(y);
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum.xx += (x[i] - mean_x) * (x[i] - mean_x);
    sum.xy += (x[i] - mean_x) * (y[i] - mean_y);
    sum.yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return sum;
}

}  // namespace

ComputeFactors::ComputeFactors(const WhatIf& what_if)
    : dp_size_(what_if.dp_size()), pp_size_(what_if.pp_size()), lane_count_(what_if.timing().lane_count) {
  for (std::size_t i = 0; i < kPassCount; ++i) {
    collect(what_if, i);
    Pass& pass = passes_[i];
    take_medians(what_if, pass);
    // A combined pass is of two microbatches at once, so of neither; an optimizer of none.
    if (i < 2) take_microbatches(what_if, pass);
    split_cells(pass);
    if (i == kOptimizerPass) keep_slow_optimizers(pass);
  }
  weigh_evidence();
}

const double* ComputeFactors::microbatch(std::size_t pass, std::size_t op_number) const {
  const Pass& of = passes_[pass];
  return of.microbatches.empty() ? nullptr : of.microbatches.data() + of.microbatch_of[op_number] * lane_count_;
}

void ComputeFactors::collect(const WhatIf& what_if, std::size_t pass_number) {
  Pass& pass = passes_[pass_number];
  std::map<std::pair<std::int32_t, std::int32_t>, std::uint32_t> places;
  std::vector<std::size_t> ops_of_place;
  MicrobatchNumbers numbers;
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& it = what_if.graph().op(op);
    if (it.kind != kKinds[pass_number]) continue;
    const auto [found, is_new] = places.try_emplace({it.stage, it.chunk}, static_cast<std::uint32_t>(places.size()));
    if (is_new) {
      ops_of_place.push_back(0);
      pass.stage_of_place.push_back(static_cast<std::size_t>(it.stage));
    }
    pass.ops.push_back(op);
    pass.place_of.push_back(found->second);
    pass.microbatch_of.push_back(numbers.of(it, ops_of_place[found->second]++));
    pass.microbatch_count = std::max<std::size_t>(pass.microbatch_count, pass.microbatch_of.back() + 1);
  }
}

void ComputeFactors::take_medians(const WhatIf& what_if, Pass& pass) const {
  const OpTiming& timing = what_if.timing();
  const std::size_t places = pass.stage_of_place.size();
  std::vector<std::vector<OpIndex>> ops(places);
  for (std::size_t i = 0; i < pass.ops.size(); ++i) ops[pass.place_of[i]].push_back(pass.ops[i]);
  pass.medians.assign(places * dp_size_, kUnknown);
  pass.spent.assign(dp_size_ * pp_size_, 0);
  pass.log_cells.assign(dp_size_ * pp_size_, 0);
  std::vector<double> values;
  for (std::size_t place = 0; place < places; ++place) {
    for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
      values.clear();
      for (OpIndex op : ops[place]) {
        for (std::size_t lane = dp_rank; lane < lane_count_; lane += dp_size_) {
          if (timing.counted.has(op, lane)) values.push_back(timing.durations(op)[lane]);
        }
      }
      const std::size_t cell = dp_rank * pp_size_ + pass.stage_of_place[place];
      double& middle = pass.medians[place * dp_size_ + dp_rank];
      if (!values.empty()) middle = median(values);
      if (!(middle > 0)) middle = kUnknown;
      pass.log_cells[cell] += middle;
      if (middle > 0) pass.spent[cell] += middle * static_cast<double>(values.size());
    }
  }
  for (double& cell : pass.log_cells) cell = cell > 0 ? std::log(cell) : kUnknown;
}

// Relative to each worker's own median, for now.
void ComputeFactors::take_microbatches(const WhatIf& what_if, Pass& pass) const {
  const OpTiming& timing = what_if.timing();
  std::vector<std::vector<std::size_t>> members(pass.microbatch_count);
  for (std::size_t i = 0; i < pass.ops.size(); ++i) members[pass.microbatch_of[i]].push_back(i);
  pass.microbatches.assign(pass.microbatch_count * lane_count_, kUnknown);
  std::vector<double> ratios;
  for (std::size_t microbatch = 0; microbatch < members.size(); ++microbatch) {
    double* factors = pass.microbatches.data() + microbatch * lane_count_;
    for (std::size_t lane = 0; lane < lane_count_; ++lane) {
      ratios.clear();
      for (std::size_t i : members[microbatch]) {
        const double usual = pass.medians[pass.place_of[i] * dp_size_ + lane % dp_size_];
        if (usual > 0 && timing.counted.has(pass.ops[i], lane)) {
          ratios.push_back(timing.durations(pass.ops[i])[lane] / usual);
        }
      }
      if (!ratios.empty()) factors[lane] = median(ratios);
      if (!(factors[lane] > 0)) factors[lane] = kUnknown;
    }
  }
}

void ComputeFactors::split_cells(Pass& pass) const {
  const std::vector<double> chance = chance_of_rank(pass);
  pass.least_gap = least_gap(pass, chance);
  const std::vector<double> shared = shared_by_rank(pass);
  std::vector<double> kept(dp_size_, 0);
  for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
    const double least = std::max(std::log(kLeastSharedRatio), kSigmaBeyondChance * chance[dp_rank]);
    if (std::abs(shared[dp_rank]) >= least) kept[dp_rank] = shared[dp_rank];
  }
  compare_places(pass, shared, kept);
  // What was not kept belongs to the microbatches of the rank.
  pass.expected = pass.medians;
  for (std::size_t i = 0; i < pass.expected.size(); ++i) {
    pass.expected[i] *= std::exp(kept[i % dp_size_] - shared[i % dp_size_]);
  }
  for (std::size_t i = 0; i < pass.microbatches.size(); ++i) {
    pass.microbatches[i] *= std::exp(shared[i % dp_size_] - kept[i % dp_size_]);
  }
  std::vector<double> scratch = pass.microbatches;
  const double middle = finite_median(scratch);
  if (!(middle > 0)) return;
  for (double& factor : pass.microbatches) factor /= middle;
  for (double& usual : pass.expected) usual *= middle;
}

// Logarithm of what all workers of a dp rank take more than is typical of their stages.
std::vector<double> ComputeFactors::shared_by_rank(const Pass& pass) const {
  std::vector<double> shared(dp_size_, 0);
  if (dp_size_ == 1) return shared;
  std::vector<double> typicals, scratch;
  for (std::size_t stage = 0; stage < pp_size_; ++stage) {
    scratch.clear();
    for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
      scratch.push_back(pass.log_cells[dp_rank * pp_size_ + stage]);
    }
    typicals.push_back(typical(scratch, pass.least_gap));
  }
  for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
    scratch.clear();
    for (std::size_t stage = 0; stage < pp_size_; ++stage) {
      scratch.push_back(pass.log_cells[dp_rank * pp_size_ + stage] - typicals[stage]);
    }
    const double found = common(scratch, pass.least_gap);
    if (std::isfinite(found)) shared[dp_rank] = found;
  }
  return shared;
}

// Standard deviation of a dp rank's median, from how its microbatches vary.
std::vector<double> ComputeFactors::chance_of_rank(const Pass& pass) const {
  std::vector<double> chance(dp_size_, 0);
  std::vector<double> factors;
  for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
    factors.clear();
    for (std::size_t i = dp_rank; i < pass.microbatches.size(); i += dp_size_) {
      if (std::isfinite(pass.microbatches[i])) factors.push_back(pass.microbatches[i]);
    }
    if (factors.empty()) continue;
    const double count = static_cast<double>(factors.size());
    chance[dp_rank] = kSigmaOfMedian * robust_sigma(factors, 1) / std::sqrt(count);
  }
  return chance;
}

// From how far apart on two workers differ in kind: a worker's median varies more than that over all stages, which the
// chance of a rank is of. Of an optimizer little is known.
double ComputeFactors::least_gap(const Pass& pass, const std::vector<double>& chance) const {
  if (pass.microbatches.empty()) return std::log(kLeastOptimizerRatio);
  std::vector<double> scratch = chance;
  const double of_worker = std::sqrt(static_cast<double>(pp_size_)) * finite_median(scratch);
  return std::max(std::log(kLeastSharedRatio), kSigmaApart * of_worker);
}

void ComputeFactors::compare_places(Pass& pass, const std::vector<double>& shared,
                                    const std::vector<double>& kept) const {
  // With one stage all that a worker has is shared by its rank, and compared with the other ranks' all.
  const bool whole = pp_size_ == 1;
  std::vector<double> scratch, own(dp_size_), typicals;
  pass.worker.assign(dp_size_ * pp_size_, 1);
  pass.stage.assign(pp_size_, 1);
  for (std::size_t stage = 0; stage < pp_size_; ++stage) {
    for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
      own[dp_rank] = pass.log_cells[dp_rank * pp_size_ + stage] - (whole ? 0 : shared[dp_rank]);
    }
    const double limit = straggler_limit(own, pass.least_gap);
    for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) {
      if (whole && kept[dp_rank] == 0) continue;
      scratch.clear();
      for (std::size_t other = 0; other < dp_size_; ++other) {
        if (other != dp_rank && own[other] <= limit) scratch.push_back(own[other]);
      }
      // Where all others are stragglers it has no peers.
      const bool is_alone = scratch.empty() && own[dp_rank] <= limit && std::isfinite(limit);
      const double excess = is_alone ? 0 : own[dp_rank] - finite_median(scratch);
      pass.worker[dp_rank * pp_size_ + stage] = exp_or_one(whole ? excess : excess + kept[dp_rank]);
    }
    scratch = own;
    typicals.push_back(typical(scratch, pass.least_gap));
  }
  for (std::size_t stage = 0; stage < pp_size_; ++stage) {
    scratch = typicals;
    scratch.erase(scratch.begin() + static_cast<std::ptrdiff_t>(stage));
    pass.stage[stage] = exp_or_one(typicals[stage] - finite_median(scratch));
  }
}

void ComputeFactors::keep_slow_optimizers(Pass& pass) const {
  for (double& factor : pass.worker) factor = factor < kLeastOptimizerRatio ? 1 : factor;
  std::fill(pass.stage.begin(), pass.stage.end(), 1);
}

ComputeFactors::Excess ComputeFactors::worker_excess(std::size_t dp_rank, std::size_t stage) const {
  double taken = 0, usual = 0;
  for (const Pass& pass : passes_) {
    const std::size_t cell = dp_rank * pp_size_ + stage;
    taken += pass.spent[cell];
    usual += pass.spent[cell] / pass.worker[cell];
  }
  return usual > 0 ? Excess{taken - usual, taken / usual} : Excess{};
}

ComputeFactors::Excess ComputeFactors::stage_excess(std::size_t stage) const {
  double taken = 0, usual = 0;
  for (const Pass& pass : passes_) {
    for (std::size_t cell = stage; cell < pass.spent.size(); cell += pp_size_) {
      taken += pass.spent[cell];
      usual += pass.spent[cell] / pass.stage[stage];
    }
  }
  return usual > 0 ? Excess{taken - usual, taken / usual} : Excess{};
}

void ComputeFactors::weigh_evidence() {
  std::vector<double> forward, backward;
  const std::size_t count = std::min(passes_[0].microbatches.size(), passes_[1].microbatches.size());
  for (std::size_t i = 0; i < count; ++i) {
    const double f = passes_[0].microbatches[i], b = passes_[1].microbatches[i];
    if (!std::isfinite(f) || !std::isfinite(b)) continue;
    forward.push_back(std::log(f));
    backward.push_back(std::log(b));
  }
  evidence_ = {kUnknown, kUnknown};
  if (forward.empty()) return;
  clip(forward);
  clip(backward);
  const Moments sum = moments_of(forward, backward);
  evidence_.forward_cv = std::sqrt(sum.xx / static_cast<double>(forward.size()));
  if (sum.xx > 0 && sum.yy > 0) evidence_.correlation = sum.xy / std::sqrt(sum.xx * sum.yy);
}

ComputeFactors compute_factors(const WhatIf& what_if, std::span<const MemberExcess> excess) {
  if (excess.empty()) return ComputeFactors(what_if);
  const OpTiming repaired = with_equal_members(what_if.timing(), excess);
  return ComputeFactors(WhatIf(what_if.graph(), repaired, what_if.dp_size(), what_if.pp_size()));
}

}  // namespace smon_rt::analysis
