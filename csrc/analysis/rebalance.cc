#include "analysis/rebalance.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <vector>

#include "analysis/evidence.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

constexpr std::size_t kForward = 0;
constexpr std::size_t kBackward = 1;

// One microbatch number in all stages and chunks: its forwards, its backwards, and their factors by lane.
struct Microbatch {
  std::array<std::vector<OpIndex>, 2> ops;
  std::array<const double*, 2> factors = {nullptr, nullptr};

  bool is_in(std::size_t lane) const {
    return factors[kForward] != nullptr && factors[kBackward] != nullptr && factors[kForward][lane] > 0 &&
           factors[kBackward][lane] > 0;
  }
};

// A microbatch of one lane.
struct Slot {
  std::size_t microbatch = 0;
  std::size_t lane = 0;
  double load = 0;
};

// Ops without a microbatch are told apart by their number: the k-th forward and the k-th backward are one microbatch.
std::vector<Microbatch> microbatches_of(const WhatIf& what_if, const ComputeFactors& factors) {
  std::map<std::int32_t, Microbatch> by_number;
  for (std::size_t pass : {kForward, kBackward}) {
    for (std::size_t i = 0; i < factors.ops(pass).size(); ++i) {
      const OpIndex op = factors.ops(pass)[i];
      const Op& it = what_if.graph().op(op);
      Microbatch& microbatch = by_number[it.microbatch >= 0 ? it.microbatch : it.seq_id];
      microbatch.ops[pass].push_back(op);
      microbatch.factors[pass] = factors.microbatch(pass, i);
    }
  }
  std::vector<Microbatch> microbatches;
  for (auto& [number, microbatch] : by_number) microbatches.push_back(std::move(microbatch));
  return microbatches;
}

double usual_ns(const WhatIf& what_if, Kind kind) {
  std::vector<double> medians = worker_medians_ns(what_if, kind);
  std::erase_if(medians, [](double value) { return !std::isfinite(value); });
  return median(medians);
}

class Rebalancing {
 public:
  Rebalancing(const WhatIf& what_if, const ComputeFactors& factors)
      : dp_size_(what_if.dp_size()),
        lane_count_(what_if.timing().lane_count),
        weights_{usual_ns(what_if, Kind::kForwardCompute), usual_ns(what_if, Kind::kBackwardCompute)},
        microbatches_(microbatches_of(what_if, factors)) {}

  void apply(JobEdit& edit) const {
    for (std::size_t first = 0; first < lane_count_; first += dp_size_) {
      const std::vector<Slot> slots = slots_of_step(first);
      const std::vector<std::vector<Slot>> dealt = deal(slots);
      std::vector<std::size_t> next(dp_size_, 0);
      for (const Slot& slot : slots) {
        const std::size_t rank = slot.lane % dp_size_;
        put(edit, slot, dealt[rank][next[rank]++]);
      }
    }
  }

 private:
  std::vector<Slot> slots_of_step(std::size_t first_lane) const {
    std::vector<Slot> slots;
    for (std::size_t i = 0; i < microbatches_.size(); ++i) {
      for (std::size_t lane = first_lane; lane < first_lane + dp_size_; ++lane) {
        if (!microbatches_[i].is_in(lane)) continue;
        const auto& factors = microbatches_[i].factors;
        slots.push_back({i, lane, weights_[0] * factors[0][lane] + weights_[1] * factors[1][lane]});
      }
    }
    return slots;
  }

  // By dp rank: what it runs now, in its order.
  std::vector<std::vector<Slot>> deal(std::vector<Slot> slots) const {
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

  void put(JobEdit& edit, const Slot& place, const Slot& taken) const {
    const Microbatch& own = microbatches_[place.microbatch];
    const Microbatch& from = microbatches_[taken.microbatch];
    for (std::size_t pass : {kForward, kBackward}) {
      const double factor = from.factors[pass][taken.lane] / own.factors[pass][place.lane];
      for (OpIndex op : own.ops[pass]) edit.durations_ns(op)[place.lane] *= factor;
    }
  }

  std::size_t dp_size_;
  std::size_t lane_count_;
  std::array<double, 2> weights_;  // of a forward and a backward in what a microbatch takes
  std::vector<Microbatch> microbatches_;
};

}  // namespace

void rebalance_microbatches(JobEdit& edit, const WhatIf& what_if, const ComputeFactors& factors) {
  Rebalancing(what_if, factors).apply(edit);
}

}  // namespace smon_rt::analysis
