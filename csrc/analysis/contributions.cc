#include "analysis/contributions.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

bool is_pp_communication(const Op& op) {
  return op.kind == Kind::kForwardSend || op.kind == Kind::kForwardRecv || op.kind == Kind::kBackwardSend ||
         op.kind == Kind::kBackwardRecv;
}

bool is_dp_communication(const Op& op) {
  return op.kind == Kind::kParamsAllGather || op.kind == Kind::kGradsReduceScatter ||
         op.kind == Kind::kGradsAllReduce || op.kind == Kind::kSeparateGradsAllReduce;
}

struct NamedPredicate {
  const char* name;
  bool (*chooses)(const Op&);
};

constexpr std::array<NamedPredicate, 5> kRemovableKinds = {{
    {"pp_communication", is_pp_communication},
    {"dp_communication", is_dp_communication},
    {"gc", [](const Op& op) { return op.kind == Kind::kGc; }},
    {"optimizer", [](const Op& op) { return op.kind == Kind::kOptimizer; }},
    {"all", [](const Op&) { return true; }},
}};

}  // namespace

Contribution contribution_of(const WhatIf& what_if, const WorkerSet& set, const LossRange& range,
                             ReplayCounter& counter) {
  Contribution result;
  result.workers = set.workers();
  if (!counter.next()) return result;
  const StepEnds removed = what_if.simulator().replay(what_if.nodelay_except(set));
  if (!counter.next()) return result;
  const StepEnds added = what_if.simulator().replay(what_if.ideal_except(set));
  const double loss = range.nodelay_ns - range.ideal_ns;
  result.removed_ns = mean(removed.last);
  result.added_ns = mean(added.last);
  result.ratio = (range.nodelay_ns - result.removed_ns) / loss;
  result.added_ratio = (result.added_ns - range.ideal_ns) / loss;
  result.removed_step_ns = removed.last;
  return result;
}

WorkerSet slowest_workers(const std::vector<double>& scores, const std::vector<std::int32_t>& ranks,
                          std::size_t dp_size, std::size_t pp_size) {
  std::vector<std::size_t> order;
  for (std::size_t worker = 0; worker < scores.size(); ++worker) {
    if (ranks[worker] >= 0) order.push_back(worker);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : ranks[a] < ranks[b];
  });
  order.resize((3 * order.size() + 99) / 100);
  WorkerSet set(dp_size, pp_size);
  for (std::size_t worker : order) set.add(worker / pp_size, worker % pp_size);
  return set;
}

std::vector<Removal> removals(const WhatIf& what_if, std::pair<std::size_t, std::size_t> worst_worker,
                              std::size_t worst_stage, ReplayCounter& counter, HostRemoval host_removal) {
  WorkerSet worker(what_if.dp_size(), what_if.pp_size());
  worker.add(worst_worker.first, worst_worker.second);
  std::vector<Removal> result;
  std::vector<Scenario> scenarios;
  auto add = [&](const char* name, Scenario scenario) {
    if (!counter.next()) return;
    result.push_back({name, {}});
    scenarios.push_back(std::move(scenario));
  };
  const bool vanishes = host_removal == HostRemoval::kVanishes;
  for (const NamedPredicate& kind : kRemovableKinds) {
    const bool is_gc = std::string_view(kind.name) == "gc";
    add(kind.name, vanishes && is_gc ? what_if.nodelay_without(kind.chooses) : what_if.nodelay_except(kind.chooses));
  }
  if (vanishes) {
    add("data_loading", what_if.nodelay_without([](const Op& op) { return op.kind == Kind::kDataLoading; }));
  }
  add("sequence_length", what_if.nodelay_with_even_microbatches());
  add("worker", what_if.nodelay_except(worker));
  add("stage", what_if.nodelay_except([&](const Op& op) { return static_cast<std::size_t>(op.stage) == worst_stage; }));
  std::vector<StepEnds> ends = what_if.simulator().replay_all(scenarios);
  for (std::size_t i = 0; i < ends.size(); ++i) result[i].step_ns = std::move(ends[i].last);
  return result;
}

int removal_replay_count(HostRemoval host_removal) {
  return static_cast<int>(kRemovableKinds.size()) + (host_removal == HostRemoval::kVanishes ? 4 : 3);
}

}  // namespace smon_rt::analysis
