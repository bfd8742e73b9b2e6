#include "analysis/contributions.h"

#include <algorithm>

#include "analysis/statistics.h"

namespace smon_rt::analysis {
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

}  // namespace smon_rt::analysis
