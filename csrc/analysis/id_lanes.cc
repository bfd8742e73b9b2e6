#include "analysis/id_lanes.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

#include "analysis/id_cells.h"
#include "analysis/id_groups.h"
#include "analysis/launch_order.h"
#include "analysis/order_merge.h"
#include "analysis/step_index.h"

namespace smon_rt::analysis {

/// Fills the table of what is left when contradicting steps are out.
class IdLaneBuilder {
 public:
  IdLaneBuilder(const OpColumns& columns, const LaunchOrder& order, IdCells& cells, std::vector<std::int32_t> ranks)
      : c_(columns), order_(order), cells_(cells) {
    result_.table.worker_ranks_ = std::move(ranks);
  }

  Result<IdLanes> build() && {
    leave_out_unfinished_steps();
    for (std::size_t stage = 0; stage < cells_.pp_size; ++stage) merge_streams(stage);
    std::vector<Group> groups = find_groups(c_, order_, cells_);
    if (auto kept = keep_steps(); !kept) return kept.error();
    keep_ops();
    keep_groups(std::move(groups));
    keep_stream_edges();
    fill_table();
    keep_launches();
    return std::move(result_);
  }

 private:
  // A step that ends before its optimizer, on all workers, is the beginning of one: a killed job has such a last step.
  void leave_out_unfinished_steps() {
    std::vector<bool> is_finished(cells_.steps.size(), false);
    std::vector<bool> is_empty(cells_.steps.size(), true);
    for (std::size_t worker = 0; worker < order_.worker_count(); ++worker) {
      const std::size_t step = worker / cells_.pp_size / cells_.dp_size;
      for (const Launch& launch : order_.of(worker)) {
        is_empty[step] = false;
        if (launch.kind == Kind::kOptimizer) is_finished[step] = true;
      }
    }
    for (std::size_t step = 0; step < is_empty.size(); ++step) {
      if (is_empty[step]) cells_.leave_out(step, "none of its rows is an op");
    }
    if (std::find(is_finished.begin(), is_finished.end(), true) == is_finished.end()) return;
    for (std::size_t step = 0; step < is_finished.size(); ++step) {
      if (!is_finished[step]) cells_.leave_out(step, "no worker has an optimizer in it, but in other steps");
    }
  }

  std::vector<std::uint32_t> stream_of(std::size_t worker) const {
    std::vector<std::uint32_t> stream;
    for (std::size_t i = order_.begin(worker); i < order_.begin(worker + 1); ++i) {
      if (order_.launches()[i].is_in_stream) stream.push_back(cells_.op_of[i]);
    }
    return stream;
  }

  // One order for the compute streams of all lanes of a stage. The order that most lanes have wins.
  void merge_streams(std::size_t stage) {
    std::map<std::vector<std::uint32_t>, std::vector<std::size_t>> lanes_of;
    std::vector<std::uint32_t> local(cells_.ops.size(), IdCells::kNone);
    std::vector<OpIndex> ops;
    for (std::size_t lane = 0; lane < cells_.lane_count; ++lane) {
      if (cells_.is_left_out(lane)) continue;
      std::vector<std::uint32_t> stream = stream_of(lane * cells_.pp_size + stage);
      for (std::uint32_t& op : stream) {
        if (local[op] == IdCells::kNone) {
          local[op] = static_cast<std::uint32_t>(ops.size());
          ops.push_back(op);
        }
        op = local[op];
      }
      lanes_of[std::move(stream)].push_back(lane);
    }
    std::vector<const std::pair<const std::vector<std::uint32_t>, std::vector<std::size_t>>*> by_frequency;
    for (const auto& each : lanes_of) by_frequency.push_back(&each);
    std::sort(by_frequency.begin(), by_frequency.end(), [](const auto* a, const auto* b) {
      if (a->second.size() != b->second.size()) return a->second.size() > b->second.size();
      return a->second.front() < b->second.front();
    });
    OrderMerge merge(ops.size());
    for (const auto* each : by_frequency) {
      const auto conflict = merge.add(each->first);
      if (!conflict) continue;
      for (std::size_t lane : each->second) {
        cells_.leave_out(lane / cells_.dp_size, describe_by_ids(cells_.ops[ops[conflict->first]]) + " runs before " +
                                                    describe_by_ids(cells_.ops[ops[conflict->second]]) +
                                                    ", in most steps after it");
      }
    }
    for (std::uint32_t item : merge.order()) {
      stream_order_.push_back(ops[item]);
      for (std::uint32_t after : merge.next(item)) result_.stream_edges.emplace_back(ops[item], ops[after]);
    }
  }

  Result<void> keep_steps() {
    for (std::size_t step = 0; step < cells_.steps.size(); ++step) {
      if (cells_.left_out[step].empty()) {
        kept_steps_.push_back(step);
        result_.table.steps_.push_back(cells_.steps[step]);
      } else {
        result_.left_out_steps.push_back({cells_.steps[step], cells_.left_out[step]});
      }
    }
    if (!kept_steps_.empty()) return {};
    const LeftOutStep& first = result_.left_out_steps.front();
    return Error{"no two steps agree, none is left to analyse; step " + std::to_string(first.step) + ": " +
                 first.reason};
  }

  // Ops of the steps that are kept: those of the compute stream in its order, the others as they first appear.
  void keep_ops() {
    new_index_.assign(cells_.ops.size(), IdCells::kNone);
    std::vector<OpIndex> order = stream_order_;
    for (std::size_t op = 0; op < cells_.ops.size(); ++op) order.push_back(static_cast<OpIndex>(op));
    std::map<std::pair<Kind, std::int32_t>, std::int32_t> count;
    for (OpIndex op : order) {
      if (new_index_[op] != IdCells::kNone || !is_used(op)) continue;
      new_index_[op] = static_cast<OpIndex>(kept_ops_.size());
      kept_ops_.push_back(op);
      Op named = cells_.ops[op];
      named.seq_id = count[{named.kind, named.stage}]++;
      result_.table.template_ops_.push_back({named, 0, 0});
    }
  }

  bool is_used(OpIndex op) const {
    for (std::size_t step : kept_steps_) {
      for (std::size_t lane = step * cells_.dp_size; lane < (step + 1) * cells_.dp_size; ++lane) {
        if (cells_.has(op, lane)) return true;
      }
    }
    return false;
  }

  void keep_groups(std::vector<Group> groups) {
    for (Group& group : groups) {
      std::vector<OpIndex> members;
      for (OpIndex op : group.members) {
        if (new_index_[op] != IdCells::kNone) members.push_back(new_index_[op]);
      }
      if (!members.empty()) result_.groups.push_back({std::move(members), group.spans_dp, std::move(group.dp_part)});
    }
  }

  void keep_stream_edges() {
    std::vector<std::pair<OpIndex, OpIndex>> edges;
    for (const auto& [before, after] : result_.stream_edges) {
      if (new_index_[before] == IdCells::kNone || new_index_[after] == IdCells::kNone) continue;
      edges.emplace_back(new_index_[before], new_index_[after]);
    }
    result_.stream_edges = std::move(edges);
  }

  void fill_table() {
    LaneTable& table = result_.table;
    table.dp_size_ = cells_.dp_size;
    const std::size_t lanes = table.lane_count();
    const std::vector<std::int64_t> step_starts = first_starts();
    table.starts_ns_ = LaneBuffer(kept_ops_.size() * lanes);
    table.ends_ns_ = LaneBuffer(kept_ops_.size() * lanes);
    table.step_times_ns_.assign(kept_steps_.size(), 0);
    table.recorded_ = table.waited_ = LaneMask(kept_ops_.size(), lanes);
    for (OpIndex op = 0; op < kept_ops_.size(); ++op) {
      const bool counts = role_of(table.template_ops_[op].op.kind) != Role::kHost;
      for (std::size_t lane = 0; lane < lanes; ++lane) {
        const std::size_t step = lane / cells_.dp_size;
        const std::size_t old_lane = kept_steps_[step] * cells_.dp_size + lane % cells_.dp_size;
        const std::uint32_t launch = cells_.launch[kept_ops_[op] * cells_.lane_count + old_lane];
        double& start = table.starts_ns_.data()[op * lanes + lane];
        double& end = table.ends_ns_.data()[op * lanes + lane];
        start = end = 0;
        if (launch == IdCells::kNone) {
          table.recorded_.take_out(op, lane);
          result_.absent_op_count += counts ? 1 : 0;
          continue;
        }
        if (!was_waited_for(order_.launches()[launch])) table.waited_.take_out(op, lane);
        start = static_cast<double>(order_.launches()[launch].start_ns - step_starts[step]);
        end = static_cast<double>(order_.launches()[launch].end_ns - step_starts[step]);
        table.step_times_ns_[step] = std::max(table.step_times_ns_[step], end);
        keep_member_excess(op, lane, order_.launches()[launch].row);
      }
    }
    table.takes_part_ = table.recorded_;
    if (!c_.step_start_ns.empty()) take_worker_starts(step_starts);
  }

  void keep_member_excess(OpIndex op, std::size_t lane, std::uint32_t row) {
    if (c_.member_excess_ns.empty() || c_.member_excess_ns[row] == 0) return;
    const auto ns = static_cast<double>(c_.member_excess_ns[row]);
    result_.member_excess.push_back({op, static_cast<std::uint32_t>(lane), ns});
  }

  // When one worker began and ended one step; nothing of it was recorded where it ends before it begins.
  struct StepSpan {
    std::int64_t begin = std::numeric_limits<std::int64_t>::max();
    std::int64_t end = std::numeric_limits<std::int64_t>::min();
    bool is_known() const { return begin <= end; }
  };

  std::vector<StepSpan> spans_of_step(std::size_t step) const {
    const std::size_t workers = cells_.dp_size * cells_.pp_size;
    std::vector<StepSpan> spans(workers);
    for (std::size_t worker = 0; worker < workers; ++worker) {
      for (const Launch& launch : order_.of(step * workers + worker)) {
        StepSpan& span = spans[worker];
        span.begin = std::min({span.begin, launch.start_ns, c_.step_start_ns[launch.row]});
        span.end = std::max(span.end, launch.end_ns);
      }
    }
    return spans;
  }

  // Each worker waits for its first op from its own start.
  void take_worker_starts(const std::vector<std::int64_t>& step_starts) {
    LaneTable& table = result_.table;
    const std::size_t workers = cells_.dp_size * cells_.pp_size;
    table.worker_starts_ns_.assign(table.lane_count() * cells_.pp_size, 0);
    table.step_times_ns_.assign(kept_steps_.size(), 0);
    for (std::size_t step = 0; step < kept_steps_.size(); ++step) {
      const std::vector<StepSpan> spans = spans_of_step(kept_steps_[step]);
      for (std::size_t worker = 0; worker < workers; ++worker) {
        if (!spans[worker].is_known()) continue;
        table.worker_starts_ns_[step * workers + worker] = static_cast<double>(spans[worker].begin - step_starts[step]);
      }
      table.step_times_ns_[step] = time_of_step(kept_steps_[step], spans);
    }
  }

  // Steps of workers overlap: who is late in one step makes the others wait in the next. From the first start to the
  // last end, or even the longest that one of them took, would count that twice. From begin to begin, each of them
  // takes what the step takes; the mean over them is the step's time. Time in which all of them were between two steps
  // is of neither.
  double time_of_step(std::size_t step, const std::vector<StepSpan>& spans) const {
    const auto follows = [&](std::size_t first, std::size_t second) {
      return second < cells_.steps.size() && cells_.steps[second] == cells_.steps[first] + 1;
    };
    const bool has_next = follows(step, step + 1);
    const std::vector<StepSpan> next = has_next ? spans_of_step(step + 1) : std::vector<StepSpan>();
    // Nobody was late: then the last of them ends it.
    if (begin_together(spans) && (!has_next || begin_together(next))) return longest_of(spans);
    if (has_next) {
      if (const double time = mean_between(spans, next, &StepSpan::begin); time > 0) return time;
    }
    if (step > 0 && follows(step - 1, step)) {
      const std::vector<StepSpan> before = spans_of_step(step - 1);
      if (const double time = mean_between(before, spans, &StepSpan::end); time > 0) return time;
    }
    return longest_of(spans);
  }

  static double longest_of(const std::vector<StepSpan>& spans) {
    std::int64_t longest = 0;
    for (const StepSpan& span : spans) longest = std::max(longest, span.is_known() ? span.end - span.begin : 0);
    return static_cast<double>(longest);
  }

  static bool begin_together(const std::vector<StepSpan>& spans) {
    constexpr double kPartOfStep = 1e-3;
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = std::numeric_limits<std::int64_t>::min();
    for (const StepSpan& span : spans) {
      if (!span.is_known()) continue;
      first = std::min(first, span.begin);
      last = std::max(last, span.begin);
    }
    return first >= last || static_cast<double>(last - first) <= kPartOfStep * longest_of(spans);
  }

  static double mean_between(const std::vector<StepSpan>& first, const std::vector<StepSpan>& second,
                             std::int64_t StepSpan::* border) {
    std::int64_t between = std::numeric_limits<std::int64_t>::max();
    double sum = 0;
    std::size_t count = 0;
    for (std::size_t worker = 0; worker < first.size(); ++worker) {
      if (!first[worker].is_known()) continue;
      // Who has no other step to measure by may have waited for that one: the others do not tell.
      if (!second[worker].is_known()) return 0;
      between = std::min(between, second[worker].begin - first[worker].end);
      sum += static_cast<double>(second[worker].*border - first[worker].*border);
      ++count;
    }
    return count == 0 ? 0 : sum / static_cast<double>(count) - static_cast<double>(std::max<std::int64_t>(between, 0));
  }

  // What was moved out of a compute has times of our making (launch_order.h): that it ends early says nothing of
  // clocks.
  bool was_waited_for(const Launch& launch) const {
    const Role role = role_of(launch.kind);
    if (role == Role::kCompute || role == Role::kHost) return true;
    return !launch.was_inside && !launch.is_exposed_part && (c_.is_waited.empty() || c_.is_waited[launch.row] != 0);
  }

  std::vector<std::int64_t> first_starts() const {
    std::vector<std::int64_t> starts;
    for (std::size_t step : kept_steps_) {
      std::int64_t first = std::numeric_limits<std::int64_t>::max();
      const std::size_t workers = cells_.dp_size * cells_.pp_size;
      for (std::size_t i = order_.begin(step * workers); i < order_.begin((step + 1) * workers); ++i) {
        first = std::min(first, order_.launches()[i].start_ns);
        if (!c_.step_start_ns.empty()) first = std::min(first, c_.step_start_ns[order_.launches()[i].row]);
      }
      starts.push_back(first);
    }
    return starts;
  }

  void keep_launches() {
    result_.begin_.push_back(0);
    const std::size_t workers = cells_.dp_size * cells_.pp_size;
    for (std::size_t step : kept_steps_) {
      for (std::size_t worker = step * workers; worker < (step + 1) * workers; ++worker) {
        for (std::size_t i = order_.begin(worker); i < order_.begin(worker + 1); ++i) {
          const Launch& launch = order_.launches()[i];
          const bool is_waited = !c_.is_waited.empty() && c_.is_waited[launch.row] == OpColumns::kWaitedByCompute;
          const std::int32_t communicator = c_.communicator.empty() ? -1 : c_.communicator[launch.row];
          result_.launches_.push_back(
              {new_index_[cells_.op_of[i]], launch.is_in_stream, launch.was_inside, is_waited, communicator});
        }
        result_.begin_.push_back(result_.launches_.size());
      }
    }
  }

  const OpColumns& c_;
  const LaunchOrder& order_;
  IdCells& cells_;
  IdLanes result_;
  std::vector<OpIndex> stream_order_;
  std::vector<std::size_t> kept_steps_;
  std::vector<OpIndex> kept_ops_;
  std::vector<std::uint32_t> new_index_;
};

Result<IdLanes> build_id_lanes(const OpColumns& columns, const JobLayout& layout) {
  auto ranks = ranks_of_workers(columns, layout);
  if (!ranks) return ranks.error();
  StepIndex step_index(columns.step);
  const std::vector<std::int64_t> steps = step_index.steps();
  // Bounds what is allocated by the rows there are: a step has some ops of each worker, even with half of them missing.
  if (steps.size() > columns.size() / ranks->size()) {
    return Error{"dp " + std::to_string(layout.dp_size) + " x pp " + std::to_string(layout.pp_size) + " has " +
                 std::to_string(ranks->size()) + " workers in " + std::to_string(steps.size()) +
                 " steps, but there are only " + std::to_string(columns.size()) + " ops"};
  }
  if (columns.size() >= std::numeric_limits<std::uint32_t>::max()) return Error{"there are 2^32 ops or more"};
  std::vector<std::uint32_t> step_of_row(columns.size());
  for (std::size_t row = 0; row < columns.size(); ++row) {
    step_of_row[row] = static_cast<std::uint32_t>(step_index.of(columns.step[row]));
  }
  const LaunchOrder order(columns, layout, step_of_row, steps.size());
  if (order.launches().empty()) return Error{"no row is an op: all are spans about others (step, startup, metric)"};
  auto cells = identify(columns, layout, order, steps);
  if (!cells) return cells.error();
  return IdLaneBuilder(columns, order, *cells, std::move(*ranks)).build();
}

}  // namespace smon_rt::analysis
