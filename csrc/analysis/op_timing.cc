#include "analysis/op_timing.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

// A loop of its own where all lanes have the op: by the reference rules that is each op.
template <typename ValueOf>
void fill(double* values, const std::uint64_t* mask, std::size_t count, ValueOf value_of) {
  if (mask == nullptr) {
    for (std::size_t l = 0; l < count; ++l) values[l] = value_of(l);
  } else {
    for (std::size_t l = 0; l < count; ++l) values[l] = mask[l] != 0 ? value_of(l) : 0;
  }
}

void max_into(double* target, const double* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) target[i] = std::max(target[i], values[i]);
}

void max_over_parts(double* lanes, std::size_t lane_count, std::size_t dp_size, const Group& group) {
  std::vector<double> last;
  for (std::size_t step = 0; step < lane_count; step += dp_size) {
    last.assign(dp_size, 0);
    for (std::size_t i = 0; i < dp_size; ++i)
      last[group.dp_part[i]] = std::max(last[group.dp_part[i]], lanes[step + i]);
    for (std::size_t i = 0; i < dp_size; ++i) lanes[step + i] = last[group.dp_part[i]];
  }
}

void max_over_dp(double* lanes, std::size_t lane_count, std::size_t dp_size, const Group& group) {
  if (!group.dp_part.empty()) return max_over_parts(lanes, lane_count, dp_size, group);
  for (std::size_t step = 0; step < lane_count; step += dp_size) {
    const double last = *std::max_element(lanes + step, lanes + step + dp_size);
    std::fill(lanes + step, lanes + step + dp_size, last);
  }
}

// An end that nobody waited for and that cannot be one is that of the launch: not wrong, but no transfer either.
void count_negative_transfer(const LaneTable& table, OpIndex op, std::size_t lane, double transfer, OpTiming& timing) {
  if (!table.waited().has(op, lane)) {
    timing.counted.take_out(op, lane);
    return;
  }
  ++timing.negative_transfer_count;
  timing.worst_negative_transfer_ns = std::max(timing.worst_negative_transfer_ns, -transfer);
}

void measure_durations(const LaneTable& table, const OpGraph& graph, const TimingRules& rules, OpTiming& timing) {
  const std::size_t lanes = table.lane_count();
  // Copies: what is behind a reference is read anew for each lane.
  const bool counts_negative = rules.counts_negative_transfers;
  const double tolerance_ns = rules.clock_tolerance_ns;
  const double implausible_ns = rules.implausible_ns();
  std::vector<double> begin(lanes);
  for (OpIndex op = 0; op < graph.size(); ++op) {
    if (graph.is_communication(op)) continue;
    double* durations = timing.durations_ns.data() + op * lanes;
    for (std::size_t l = 0; l < lanes; ++l) durations[l] = table.ends_ns(op)[l] - table.starts_ns(op)[l];
  }
  for (const Group& group : graph.groups()) {
    // A lane that lacks a member has 0 there, and nobody waits for it.
    std::copy_n(table.starts_ns(group.members.front()), lanes, begin.begin());
    for (OpIndex member : group.members) max_into(begin.data(), table.starts_ns(member), lanes);
    if (group.spans_dp) max_over_dp(begin.data(), lanes, table.dp_size(), group);
    for (OpIndex member : group.members) {
      const double* ends = table.ends_ns(member);
      fill(timing.durations_ns.data() + member * lanes, timing.takes_part.of(member), lanes, [&](std::size_t l) {
        const double transfer = ends[l] - begin[l];
        if (counts_negative && transfer < -tolerance_ns) {
          count_negative_transfer(table, member, l, transfer, timing);
        }
        return transfer <= implausible_ns ? 0 : transfer;
      });
    }
  }
}

void measure_launch_delays(const LaneTable& table, const OpGraph& graph, const TimingRules& rules, OpTiming& timing) {
  const std::size_t lanes = table.lane_count();
  const double tolerance_ns = rules.clock_tolerance_ns;
  const double implausible_ns = rules.implausible_ns();
  std::vector<double> ready(lanes);
  for (OpIndex op = 0; op < graph.size(); ++op) {
    const std::span<const OpIndex> dependencies = graph.dependencies(op);
    if (!table.worker_starts_ns().empty()) {
      for (std::size_t l = 0; l < lanes; ++l) ready[l] = table.worker_start_ns(l, graph.op(op).stage);
      for (OpIndex before : dependencies) max_into(ready.data(), table.ends_ns(before), lanes);
    } else if (dependencies.empty()) {
      std::fill(ready.begin(), ready.end(), 0.0);
    } else {
      std::copy_n(table.ends_ns(dependencies.front()), lanes, ready.begin());
      for (OpIndex before : dependencies.subspan(1)) max_into(ready.data(), table.ends_ns(before), lanes);
    }
    const double* starts = table.starts_ns(op);
    fill(timing.launch_delays_ns.data() + op * lanes, timing.takes_part.of(op), lanes, [&](std::size_t l) {
      const double delay = starts[l] - ready[l];
      if (delay < -tolerance_ns) {
        ++timing.early_start_count;
        timing.worst_early_start_ns = std::max(timing.worst_early_start_ns, -delay);
      }
      return delay <= implausible_ns ? 0 : delay;
    });
  }
}

bool takes_median(Kind kind) {
  switch (kind) {
    case Kind::kForwardSend:
    case Kind::kForwardRecv:
    case Kind::kBackwardSend:
    case Kind::kBackwardRecv:
    case Kind::kParamsAllGather:
    case Kind::kGradsReduceScatter:
    case Kind::kGradsAllReduce:
    case Kind::kCollective:
    case Kind::kSeparateGradsAllReduce:
    case Kind::kLayernormGradsAllReduce:
    case Kind::kEmbeddingGradsAllReduce:
    case Kind::kOptimizerClipMainGrad:
      return true;
    default:
      return false;
  }
}

void append_counted(const OpTiming& timing, OpIndex op, std::vector<double>& values) {
  const double* durations = timing.durations(op);
  const std::uint64_t* mask = timing.counted.of(op);
  if (mask == nullptr) {
    values.insert(values.end(), durations, durations + timing.lane_count);
    return;
  }
  for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
    if (mask[lane] != 0) values.push_back(durations[lane]);
  }
}

}  // namespace

OpTiming measure_ops(const LaneTable& table, const OpGraph& graph, const TimingRules& rules) {
  OpTiming timing;
  timing.counted = table.recorded();
  timing.takes_part = table.takes_part();
  timing.lane_count = table.lane_count();
  timing.durations_ns = LaneBuffer(graph.size() * timing.lane_count);
  timing.launch_delays_ns = LaneBuffer(graph.size() * timing.lane_count);
  measure_durations(table, graph, rules, timing);
  measure_launch_delays(table, graph, rules, timing);
  return timing;
}

std::array<double, kKindCount> ideal_durations(const OpTiming& timing, const OpGraph& graph) {
  std::array<double, kKindCount> ideal{};
  std::array<std::vector<OpIndex>, kKindCount> ops;
  for (OpIndex op = 0; op < graph.size(); ++op) ops[static_cast<std::size_t>(graph.op(op).kind)].push_back(op);
  std::vector<double> values;
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    values.clear();
    for (OpIndex op : ops[kind]) {
      append_counted(timing, op, values);
    }
    ideal[kind] = takes_median(static_cast<Kind>(kind)) ? median(values) : mean(values);
  }
  return ideal;
}

std::vector<double> ideal_durations_of_ops(const OpTiming& timing, const OpGraph& graph) {
  const std::array<double, kKindCount> by_kind = ideal_durations(timing, graph);
  std::vector<double> ideal;
  std::vector<double> values;
  for (OpIndex op = 0; op < graph.size(); ++op) {
    ideal.push_back(by_kind[static_cast<std::size_t>(graph.op(op).kind)]);
    if (timing.complete.of(op) == nullptr) continue;
    values.clear();
    append_counted(timing, op, values);
    if (!values.empty()) continue;
    for (std::size_t lane = 0; lane < timing.lane_count; ++lane) {
      if (!timing.complete.has(op, lane)) values.push_back(timing.durations(op)[lane]);
    }
    ideal.back() = median(values);
  }
  return ideal;
}

}  // namespace smon_rt::analysis
