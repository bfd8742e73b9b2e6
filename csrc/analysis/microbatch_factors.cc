#include "analysis/microbatch_factors.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "analysis/evidence.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

// Ops without a microbatch are told apart by their number: the k-th forward and the k-th backward are one microbatch.
std::int32_t number_of(const Op& op) {
  return op.microbatch >= 0 ? op.microbatch : op.seq_id;
}

double usual_ns(const WhatIf& what_if, Kind kind) {
  std::vector<double> medians;
  for (double value : worker_medians_ns(what_if, kind)) {
    if (std::isfinite(value)) medians.push_back(value);
  }
  return median(medians);
}

// Median of the op's worker and chunk in each dp rank, over all of its microbatches; NaN where there is none.
using Medians = std::map<std::pair<std::int32_t, std::int32_t>, std::vector<double>>;

Medians medians_by_chunk(const WhatIf& what_if, Kind kind) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<OpIndex>> ops;
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& it = what_if.graph().op(op);
    if (it.kind == kind) ops[{it.stage, it.chunk}].push_back(op);
  }
  Medians medians;
  std::vector<double> values;
  const OpTiming& timing = what_if.timing();
  for (const auto& [place, of_place] : ops) {
    for (std::size_t dp_rank = 0; dp_rank < what_if.dp_size(); ++dp_rank) {
      values.clear();
      for (OpIndex op : of_place) {
        for (std::size_t lane = dp_rank; lane < timing.lane_count; lane += what_if.dp_size()) {
          if (timing.counted.has(op, lane)) values.push_back(timing.durations(op)[lane]);
        }
      }
      medians[place].push_back(values.empty() ? std::nan("") : median(values));
    }
  }
  return medians;
}

}  // namespace

MicrobatchFactors::MicrobatchFactors(const WhatIf& what_if)
    : dp_size_(what_if.dp_size()),
      lane_count_(what_if.timing().lane_count),
      forward_weight_(usual_ns(what_if, Kind::kForwardCompute)),
      backward_weight_(usual_ns(what_if, Kind::kBackwardCompute)) {
  std::map<std::int32_t, std::size_t> index_of;
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& it = what_if.graph().op(op);
    if (it.kind != Kind::kForwardCompute && it.kind != Kind::kBackwardCompute) continue;
    const auto [found, is_new] = index_of.try_emplace(number_of(it), microbatches_.size());
    if (is_new) microbatches_.emplace_back();
    Microbatch& microbatch = microbatches_[found->second];
    (it.kind == Kind::kForwardCompute ? microbatch.forward : microbatch.backward).ops.push_back(op);
  }
  for (Kind kind : {Kind::kForwardCompute, Kind::kBackwardCompute}) {
    const Medians medians = medians_by_chunk(what_if, kind);
    for (Microbatch& microbatch : microbatches_) {
      Passes& passes = kind == Kind::kForwardCompute ? microbatch.forward : microbatch.backward;
      passes.factors.assign(lane_count_, 0);
      std::vector<double> ratios;
      for (std::size_t lane = 0; lane < lane_count_; ++lane) {
        ratios.clear();
        for (OpIndex op : passes.ops) {
          if (!what_if.timing().counted.has(op, lane)) continue;
          const Op& it = what_if.graph().op(op);
          const double usual = medians.at({it.stage, it.chunk})[lane % dp_size_];
          if (usual > 0) ratios.push_back(what_if.timing().durations(op)[lane] / usual);
        }
        if (!ratios.empty()) passes.factors[lane] = median(ratios);
      }
    }
  }
}

void MicrobatchFactors::even_out(JobEdit& edit) const {
  for (const Microbatch& microbatch : microbatches_) {
    for (const Passes* passes : {&microbatch.forward, &microbatch.backward}) {
      for (OpIndex op : passes->ops) {
        double* durations = edit.durations_ns(op);
        for (std::size_t lane = 0; lane < lane_count_; ++lane) {
          if (passes->factors[lane] > 0) durations[lane] /= passes->factors[lane];
        }
      }
    }
  }
}

std::vector<MicrobatchFactors::Slot> MicrobatchFactors::slots_of_step(std::size_t first_lane) const {
  std::vector<Slot> slots;
  for (std::size_t i = 0; i < microbatches_.size(); ++i) {
    const Microbatch& microbatch = microbatches_[i];
    for (std::size_t lane = first_lane; lane < first_lane + dp_size_; ++lane) {
      const double forward = microbatch.forward.factors[lane];
      const double backward = microbatch.backward.factors[lane];
      if (forward > 0 && backward > 0) {
        slots.push_back({i, lane, forward_weight_ * forward + backward_weight_ * backward});
      }
    }
  }
  return slots;
}

// By dp rank: what it runs now, in its order.
std::vector<std::vector<MicrobatchFactors::Slot>> MicrobatchFactors::deal(std::vector<Slot> slots) const {
  std::vector<std::size_t> room(dp_size_, 0);
  for (const Slot& slot : slots) ++room[slot.lane % dp_size_];
  std::stable_sort(slots.begin(), slots.end(), [](const Slot& a, const Slot& b) { return a.load > b.load; });
  std::vector<double> load(dp_size_, 0);
  std::vector<std::vector<Slot>> dealt(dp_size_);
  for (const Slot& slot : slots) {
    std::size_t least = dp_size_;
    for (std::size_t rank = 0; rank < dp_size_; ++rank) {
      if (dealt[rank].size() < room[rank] && (least == dp_size_ || load[rank] < load[least])) least = rank;
    }
    load[least] += slot.load;
    dealt[least].push_back(slot);
  }
  return dealt;
}

void MicrobatchFactors::rebalance(JobEdit& edit) const {
  const auto put = [&](const Passes& place, std::size_t lane, const Passes& from, std::size_t from_lane) {
    for (OpIndex op : place.ops) edit.durations_ns(op)[lane] *= from.factors[from_lane] / place.factors[lane];
  };
  for (std::size_t first = 0; first < lane_count_; first += dp_size_) {
    const std::vector<Slot> slots = slots_of_step(first);
    const std::vector<std::vector<Slot>> dealt = deal(slots);
    std::vector<std::size_t> next(dp_size_, 0);
    for (const Slot& slot : slots) {
      const std::size_t rank = slot.lane % dp_size_;
      const Slot& taken = dealt[rank][next[rank]++];
      const Microbatch& place = microbatches_[slot.microbatch];
      const Microbatch& from = microbatches_[taken.microbatch];
      put(place.forward, slot.lane, from.forward, taken.lane);
      put(place.backward, slot.lane, from.backward, taken.lane);
    }
  }
}

}  // namespace smon_rt::analysis
