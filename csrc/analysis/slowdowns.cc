#include "analysis/slowdowns.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

std::string_view merged_kind(const Op& op) {
  switch (op.kind) {
    case Kind::kForwardSend:
    case Kind::kForwardRecv:
      return "forward_pp_comm";
    case Kind::kBackwardSend:
    case Kind::kBackwardRecv:
      return "backward_pp_comm";
    default:
      return kind_name(op.kind);
  }
}

std::string_view launch_kind(const Op& op) {
  const Kind first = op.stage == 0 ? Kind::kForwardCompute : Kind::kForwardRecv;
  return op.kind == first && op.seq_id == 0 ? "first_op" : merged_kind(op);
}

template <typename NameOf>
std::vector<std::string> names_present(const WhatIf& what_if, NameOf name_of) {
  std::vector<std::string> names;
  for (const Op& op : what_if.graph().ops()) names.emplace_back(name_of(op));
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::vector<std::string> numbers(std::size_t count) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

void append(Breakdown& breakdown, std::string name, const std::vector<double>& step_ns,
            const std::vector<double>& reference_ns) {
  breakdown.names.push_back(std::move(name));
  breakdown.ratios.push_back(mean(step_ns) / mean(reference_ns));
  std::vector<double>& by_step = breakdown.ratios_by_step.emplace_back();
  for (std::size_t i = 0; i < step_ns.size(); ++i) by_step.push_back(step_ns[i] / reference_ns[i]);
}

// One replay a name, in batches: small enough that scenarios, one value an op, do not outgrow the trace.
template <typename ScenarioOf>
Breakdown replay_each(const WhatIf& what_if, const std::vector<double>& reference_ns, ReplayCounter& counter,
                      const std::vector<std::string>& names, ScenarioOf scenario_of) {
  constexpr std::size_t kBatch = 16;
  Breakdown breakdown;
  for (std::size_t begin = 0; begin < names.size(); begin += kBatch) {
    std::vector<Scenario> scenarios;
    for (std::size_t i = begin; i < std::min(begin + kBatch, names.size()) && counter.next(); ++i) {
      scenarios.push_back(scenario_of(i));
    }
    const std::vector<StepEnds> ends = what_if.simulator().replay_all(scenarios);
    for (std::size_t i = 0; i < ends.size(); ++i) {
      append(breakdown, names[begin + i], ends[i].optimizer, reference_ns);
    }
  }
  return breakdown;
}

// Each kind in turn keeps what `scenario_of` lets it keep; the rest of the job is the reference.
template <typename NameOf, typename ScenarioOf>
Breakdown by_kind(const WhatIf& what_if, const std::vector<double>& reference_ns, ReplayCounter& counter,
                  NameOf name_of, ScenarioOf scenario_of) {
  const std::vector<std::string> names = names_present(what_if, name_of);
  return replay_each(what_if, reference_ns, counter, names,
                     [&](std::size_t i) { return scenario_of([&](const Op& op) { return name_of(op) == names[i]; }); });
}

template <typename ScenarioOf>
Breakdown by_stage(const WhatIf& what_if, const std::vector<double>& reference_ns, ReplayCounter& counter,
                   ScenarioOf scenario_of) {
  return replay_each(what_if, reference_ns, counter, numbers(what_if.pp_size()), [&](std::size_t stage) {
    return scenario_of([&](const Op& op) { return static_cast<std::size_t>(op.stage) == stage; });
  });
}

// The step times in which this dp rank is the one that differs.
std::vector<double> steps_of_dp_rank(const std::vector<double>& lane_ns, std::size_t dp_rank, std::size_t dp_size) {
  std::vector<double> steps;
  for (std::size_t lane = dp_rank; lane < lane_ns.size(); lane += dp_size) steps.push_back(lane_ns[lane]);
  return steps;
}

}  // namespace

bool ReplayCounter::next() {
  ++done_;
  return go_on();
}

bool ReplayCounter::go_on() {
  if (!stopped_ && progress_ && !progress_(done_, total_)) stopped_ = true;
  return !stopped_;
}

bool ReplayCounter::finish() {
  if (done_ == total_) return !stopped_;
  done_ = total_ - 1;
  return next();
}

Breakdowns slowdowns(const WhatIf& what_if, const std::vector<double>& ideal_step_ns, ReplayCounter& counter) {
  Breakdowns result;
  auto keeps_durations = [&](const OpPredicate& chosen) { return what_if.ideal_except(chosen); };
  result.kind = by_kind(what_if, ideal_step_ns, counter, merged_kind, keeps_durations);
  result.stage = by_stage(what_if, ideal_step_ns, counter, keeps_durations);
  if (!counter.next()) return result;
  const std::vector<double> lane_ns =
      what_if.simulator().replay_each_against_ideal(what_if.nodelay(), what_if.ideal_durations());
  for (std::size_t dp_rank = 0; dp_rank < what_if.dp_size(); ++dp_rank) {
    append(result.dp_rank, std::to_string(dp_rank), steps_of_dp_rank(lane_ns, dp_rank, what_if.dp_size()),
           ideal_step_ns);
  }
  return result;
}

Breakdowns launch_slowdowns(const WhatIf& what_if, const std::vector<double>& nodelay_step_ns, ReplayCounter& counter) {
  Breakdowns result;
  auto keeps_delays = [&](const OpPredicate& chosen) { return what_if.nodelay_with_launch_delays(chosen); };
  result.kind = by_kind(what_if, nodelay_step_ns, counter, launch_kind, keeps_delays);
  result.stage = by_stage(what_if, nodelay_step_ns, counter, keeps_delays);
  result.dp_rank = replay_each(what_if, nodelay_step_ns, counter, numbers(what_if.dp_size()),
                               [&](std::size_t dp_rank) { return what_if.nodelay_with_launch_delays(dp_rank); });
  return result;
}

std::vector<std::vector<double>> worker_slowdowns_by_step(const WhatIf& what_if,
                                                          const std::vector<double>& ideal_step_ns,
                                                          ReplayCounter& counter) {
  const std::size_t dp_size = what_if.dp_size();
  std::vector<std::vector<double>> ratios(dp_size * what_if.pp_size());
  for (std::size_t stage = 0; stage < what_if.pp_size() && counter.next(); ++stage) {
    const Scenario scenario =
        what_if.ideal_except([&](const Op& op) { return static_cast<std::size_t>(op.stage) == stage; });
    const std::vector<double> lane_ns =
        what_if.simulator().replay_each_against_ideal(scenario, what_if.ideal_durations());
    for (std::size_t lane = 0; lane < lane_ns.size(); ++lane) {
      const std::size_t step = lane / dp_size;
      ratios[(lane % dp_size) * what_if.pp_size() + stage].push_back(lane_ns[lane] / ideal_step_ns[step]);
    }
  }
  return ratios;
}

int slowdown_replay_count(const WhatIf& what_if) {
  const std::size_t kinds = names_present(what_if, merged_kind).size() + names_present(what_if, launch_kind).size();
  return static_cast<int>(kinds + 3 * what_if.pp_size() + 1 + what_if.dp_size());
}

}  // namespace smon_rt::analysis
