#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "analysis/lane_mask.h"
#include "analysis/op_graph.h"
#include "analysis/simulator.h"

namespace smon_rt::analysis::testing {

/// A random graph without circles: ops lie in layers, wait for earlier layers only and communicate within theirs.
/// Indices are shuffled, so that nothing may rely on their order. Some ops are optimizers. A group over dp ranks is
/// over all of them, or over parts of one of `dp_parts`, if there are any.
inline OpGraph random_graph(std::mt19937& random, std::size_t op_count,
                            const std::vector<std::vector<std::uint32_t>>& dp_parts = {}) {
  auto below = [&](std::size_t limit) { return static_cast<std::size_t>(random() % limit); };
  std::vector<OpIndex> index_of(op_count);
  std::iota(index_of.begin(), index_of.end(), OpIndex{0});
  std::shuffle(index_of.begin(), index_of.end(), random);
  std::vector<std::size_t> layer_of(op_count);
  for (std::size_t i = 0; i < op_count; ++i) layer_of[i] = i * 8 / op_count;

  OpGraphBuilder builder;
  for (std::size_t i = 0; i < op_count; ++i) {
    const Kind kind = below(5) == 0 ? Kind::kOptimizer : Kind::kForwardCompute;
    builder.add_op({kind, 0, static_cast<std::int32_t>(i), 0, 0, -1});
  }
  for (std::size_t i = 0; i < op_count; ++i) {
    for (std::size_t edges = below(4); edges > 0 && i > 0; --edges) {
      const std::size_t before = below(i);
      if (layer_of[before] < layer_of[i]) builder.add_dependency(index_of[i], index_of[before]);
    }
  }
  for (std::size_t i = 0; i < op_count;) {
    const std::size_t size = 1 + below(3);
    std::vector<OpIndex> members;
    for (std::size_t k = i; k < std::min(i + size, op_count) && layer_of[k] == layer_of[i]; ++k) {
      members.push_back(index_of[k]);
    }
    i += members.size();
    if (below(2) != 0) continue;
    Group group{std::move(members), below(3) == 0};
    if (const std::size_t parts = below(dp_parts.size() + 1); group.spans_dp && parts > 0) {
      group.dp_part = dp_parts[parts - 1];
    }
    builder.add_group(std::move(group));
  }
  return std::move(std::move(builder).build()).value();
}

/// About every eighth op is missing in a lane, some lanes miss the same.
inline LaneMask random_mask(std::mt19937& random, std::size_t op_count, std::size_t lane_count) {
  LaneMask mask(op_count, lane_count);
  for (std::size_t lane = 0; lane < lane_count; ++lane) {
    std::mt19937 of_lane(random() % 3 == 0 ? static_cast<std::uint32_t>(random()) : 5u);
    for (OpIndex op = 0; op < op_count; ++op) {
      if (of_lane() % 8 == 0) mask.take_out(op, lane);
    }
  }
  return mask;
}

/// One value per op and lane, [op · lanes + lane].
inline std::vector<double> random_values(std::mt19937& random, std::size_t count, std::uint32_t below = 1000) {
  std::vector<double> values(count);
  for (double& value : values) value = static_cast<double>(random() % below);
  return values;
}

inline std::vector<OpValues> rows_of(const std::vector<double>& values, std::size_t op_count) {
  std::vector<OpValues> rows;
  const std::size_t lanes = op_count == 0 ? 0 : values.size() / op_count;
  for (std::size_t op = 0; op < op_count; ++op) rows.push_back({values.data() + op * lanes, 0, nullptr});
  return rows;
}

/// The replay by its definition, without order, program or blocks: looks at all ops of a step again and again until
/// every start and end is known.
class NaiveReplay {
 public:
  NaiveReplay(const OpGraph& graph, std::size_t dp_size, std::size_t step_count, const std::vector<double>& durations,
              const std::vector<double>& launch_delays, const LaneMask& takes_part = {})
      : graph_(graph),
        dp_size_(dp_size),
        lanes_(dp_size * step_count),
        durations_(durations),
        delays_(launch_delays),
        takes_part_(takes_part) {
    starts_.resize(graph.size() * lanes_);
    ends_.resize(graph.size() * lanes_);
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t lane = 0; lane < lanes_; ++lane) {
        for (OpIndex op = 0; op < graph.size(); ++op) changed |= advance(op, lane);
      }
    }
    for (std::size_t step = 0; step < step_count; ++step) add_step(step);
  }

  const StepEnds& step_ends() const { return step_ends_; }

 private:
  std::size_t at(OpIndex op, std::size_t lane) const { return op * lanes_ + lane; }

  bool advance(OpIndex op, std::size_t lane) {
    if (!takes_part_.has(op, lane)) {
      const bool is_new = !ends_[at(op, lane)];
      starts_[at(op, lane)] = ends_[at(op, lane)] = 0;
      return is_new;
    }
    if (!starts_[at(op, lane)]) {
      std::optional<double> ready;
      for (OpIndex before : graph_.dependencies(op)) {
        const std::optional<double>& end = ends_[at(before, lane)];
        if (!end) return false;
        ready = ready ? std::max(*ready, *end) : *end;
      }
      starts_[at(op, lane)] = ready.value_or(0) + (delays_.empty() ? 0 : delays_[at(op, lane)]);
      return true;
    }
    if (ends_[at(op, lane)]) return false;
    double begin = *starts_[at(op, lane)];
    if (graph_.is_communication(op)) {
      const Group& group = graph_.groups()[graph_.group_of(op)];
      const std::size_t first = lane / dp_size_ * dp_size_;
      for (std::size_t peer = first; peer < first + dp_size_; ++peer) {
        if (!group.joins(lane - first, peer - first)) continue;
        for (OpIndex member : group.members) {
          if (!starts_[at(member, peer)]) return false;
          begin = std::max(begin, *starts_[at(member, peer)]);
        }
      }
    }
    ends_[at(op, lane)] = begin + durations_[at(op, lane)];
    return true;
  }

  void add_step(std::size_t step) {
    double optimizer = 0, last = 0;
    for (std::size_t lane = step * dp_size_; lane < (step + 1) * dp_size_; ++lane) {
      for (OpIndex op = 0; op < graph_.size(); ++op) {
        const double end = ends_[at(op, lane)].value();
        last = std::max(last, end);
        if (graph_.op(op).kind == Kind::kOptimizer) optimizer = std::max(optimizer, end);
      }
    }
    step_ends_.optimizer.push_back(optimizer);
    step_ends_.last.push_back(last);
  }

  const OpGraph& graph_;
  std::size_t dp_size_;
  std::size_t lanes_;
  const std::vector<double>& durations_;
  const std::vector<double>& delays_;
  const LaneMask& takes_part_;
  std::vector<std::optional<double>> starts_, ends_;
  StepEnds step_ends_;
};

}  // namespace smon_rt::analysis::testing
