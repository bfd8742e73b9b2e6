#include "analysis/evidence.h"

#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

using OpPairs = std::vector<std::pair<OpIndex, OpIndex>>;

// Forward and backward of the same microbatch and chunk, per stage.
std::vector<OpPairs> pairs_by_stage(const WhatIf& what_if) {
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, OpIndex> forwards;
  std::vector<OpPairs> pairs(what_if.pp_size());
  const OpGraph& graph = what_if.graph();
  auto key = [&](OpIndex op) { return std::tuple(graph.op(op).stage, graph.op(op).chunk, graph.op(op).microbatch); };
  for (OpIndex op = 0; op < graph.size(); ++op) {
    if (graph.op(op).kind == Kind::kForwardCompute && graph.op(op).microbatch >= 0) forwards[key(op)] = op;
  }
  for (OpIndex op = 0; op < graph.size(); ++op) {
    if (graph.op(op).kind != Kind::kBackwardCompute) continue;
    const auto forward = forwards.find(key(op));
    if (forward != forwards.end())
      pairs[static_cast<std::size_t>(graph.op(op).stage)].emplace_back(forward->second, op);
  }
  return pairs;
}

struct Moments {
  double forward_square = 0, backward_square = 0, product = 0, relative_square = 0;
  std::size_t count = 0;
};

// Sums over one worker: its lanes are those of its dp rank.
void add_worker(const OpTiming& timing, const OpPairs& pairs, std::size_t dp_rank, std::size_t dp_size, Moments& sum) {
  double forward_mean = 0, backward_mean = 0;
  std::size_t count = 0;
  for (const auto& [forward, backward] : pairs) {
    for (std::size_t lane = dp_rank; lane < timing.lane_count; lane += dp_size) {
      if (!timing.counted.has(forward, lane) || !timing.counted.has(backward, lane)) continue;
      forward_mean += timing.durations(forward)[lane];
      backward_mean += timing.durations(backward)[lane];
      ++count;
    }
  }
  if (count == 0) return;
  forward_mean /= static_cast<double>(count);
  backward_mean /= static_cast<double>(count);
  for (const auto& [forward, backward] : pairs) {
    for (std::size_t lane = dp_rank; lane < timing.lane_count; lane += dp_size) {
      if (!timing.counted.has(forward, lane) || !timing.counted.has(backward, lane)) continue;
      const double f = timing.durations(forward)[lane] - forward_mean;
      const double b = timing.durations(backward)[lane] - backward_mean;
      sum.forward_square += f * f;
      sum.backward_square += b * b;
      sum.product += f * b;
      sum.relative_square += f * f / (forward_mean * forward_mean);
    }
  }
  sum.count += count;
}

}  // namespace

ForwardBackward forward_backward(const WhatIf& what_if) {
  Moments sum;
  const std::vector<OpPairs> pairs = pairs_by_stage(what_if);
  for (const OpPairs& of_stage : pairs) {
    for (std::size_t dp_rank = 0; dp_rank < what_if.dp_size(); ++dp_rank) {
      add_worker(what_if.timing(), of_stage, dp_rank, what_if.dp_size(), sum);
    }
  }
  ForwardBackward result{std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  if (sum.forward_square > 0 && sum.backward_square > 0) {
    result.correlation = sum.product / std::sqrt(sum.forward_square * sum.backward_square);
  }
  if (sum.count > 0) result.forward_cv = std::sqrt(sum.relative_square / static_cast<double>(sum.count));
  return result;
}

std::vector<double> worker_medians_ns(const WhatIf& what_if, Kind kind) {
  const std::size_t pp_size = what_if.pp_size();
  std::vector<std::vector<OpIndex>> ops(pp_size);
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    if (what_if.graph().op(op).kind == kind) ops[static_cast<std::size_t>(what_if.graph().op(op).stage)].push_back(op);
  }
  std::vector<double> medians(what_if.dp_size() * pp_size);
  std::vector<double> values;
  for (std::size_t worker = 0; worker < medians.size(); ++worker) {
    values.clear();
    for (OpIndex op : ops[worker % pp_size]) {
      for (std::size_t lane = worker / pp_size; lane < what_if.timing().lane_count; lane += what_if.dp_size()) {
        if (what_if.timing().counted.has(op, lane)) values.push_back(what_if.timing().durations(op)[lane]);
      }
    }
    medians[worker] = values.empty() ? std::numeric_limits<double>::quiet_NaN() : median(values);
  }
  return medians;
}

}  // namespace smon_rt::analysis
