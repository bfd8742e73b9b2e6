#include "format/once_visitor.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <vector>

namespace smon_rt {

void OnceVisitor::on_identity(const TraceIdentity& identity) {
  std::string key = identity.run_id;
  key.append(1, '\0').append(identity.boot_id);
  for (const auto number : {static_cast<std::uint64_t>(identity.attempt), static_cast<std::uint64_t>(identity.rank),
                            static_cast<std::uint64_t>(identity.pid), identity.process_start_ticks}) {
    key.append(1, '\0').append(std::to_string(number));
  }
  process_ = &processes_[key];
  wrapped_.on_identity(identity);
}

void OnceVisitor::on_spans(const SpanBatch& batch) {
  auto& ranges = process_->taken[batch.ring_id];
  // Indices near the end of their 64 bits are no writer's: not counted beyond it.
  const std::uint64_t room = std::numeric_limits<std::uint64_t>::max() - batch.first_index;
  const std::uint64_t end = batch.first_index + std::min<std::uint64_t>(batch.spans.size(), room);
  std::uint64_t at = batch.first_index;
  std::uint64_t range_begin = at;
  std::uint64_t range_end = end;
  // The first range that may reach into the batch, then those after it, are passed over and become one with it.
  auto range = ranges.upper_bound(at);
  if (range != ranges.begin() && std::prev(range)->second >= at) --range;
  const auto pass_on = [&](std::uint64_t until) {
    if (at < until) {
      wrapped_.on_spans({batch.ring_id, at, batch.spans.subspan(at - batch.first_index, until - at)});
    }
  };
  while (range != ranges.end() && range->first <= end) {
    pass_on(range->first);
    const std::uint64_t known_end = std::min(range->second, end);
    if (known_end > std::max(at, range->first)) repeated_spans_ += known_end - std::max(at, range->first);
    at = std::max(at, range->second);
    range_begin = std::min(range_begin, range->first);
    range_end = std::max(range_end, range->second);
    range = ranges.erase(range);
  }
  pass_on(end);
  if (range_begin < range_end) ranges[range_begin] = range_end;
}

void OnceVisitor::on_step_times(std::span<const StepTime> step_times) {
  std::vector<StepTime> fresh;
  fresh.reserve(step_times.size());
  for (const StepTime& step : step_times) {
    if (process_->steps.emplace(step.step, step.start_ns).second) fresh.push_back(step);
  }
  repeated_steps_ += step_times.size() - fresh.size();
  if (!fresh.empty()) wrapped_.on_step_times(fresh);
}

void OnceVisitor::on_recorder_cost(const TraceRecorderCost& cost) {
  const Cost key{cost.drain_cpu_ns, cost.reporter_cpu_ns, cost.watchdog_cpu_ns, cost.span_count, cost.file_bytes};
  if (process_->costs.insert(key).second) wrapped_.on_recorder_cost(cost);
}

void OnceVisitor::on_comm_ops(std::span<const TraceCommOp> ops) {
  std::vector<TraceCommOp> fresh;
  fresh.reserve(ops.size());
  for (const TraceCommOp& op : ops) {
    if (process_->comm_ops.insert(op.number).second) fresh.push_back(op);
  }
  if (!fresh.empty()) wrapped_.on_comm_ops(fresh);
}

}  // namespace smon_rt
