#include "analysis/ideal_timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "analysis/what_if.h"

namespace smon_rt::analysis {
namespace {

class TimedReplay {
 public:
  TimedReplay(const OpGraph& graph, std::size_t dp_size, std::size_t step_count, const Scenario& scenario,
              const LaneMask* takes_part)
      : graph_(graph),
        scenario_(scenario),
        takes_part_(takes_part),
        dp_size_(dp_size),
        lane_count_(dp_size * step_count),
        starts_(graph.size() * lane_count_),
        ends_(graph.size() * lane_count_),
        started_(graph.groups().size(), 0) {}

  OpTimes run() && {
    for (OpIndex op : graph_.order()) {
      start(op);
      if (!graph_.is_communication(op)) {
        end(op, starts_of(op));
        continue;
      }
      const Group& group = graph_.groups()[graph_.group_of(op)];
      if (++started_[graph_.group_of(op)] == group.members.size()) complete(group);
    }
    return {std::move(starts_), std::move(ends_), lane_count_};
  }

 private:
  double* starts_of(OpIndex op) { return starts_.data() + op * lane_count_; }
  double* ends_of(OpIndex op) { return ends_.data() + op * lane_count_; }

  static double value_of(const OpValues& values, std::size_t lane) {
    const bool is_own = values.lanes != nullptr && (values.mask == nullptr || values.mask[lane] != 0);
    return is_own ? values.lanes[lane] : values.constant;
  }

  bool has(OpIndex op, std::size_t lane) const { return takes_part_ == nullptr || takes_part_->has(op, lane); }

  void start(OpIndex op) {
    double* starts = starts_of(op);
    std::fill_n(starts, lane_count_, graph_.dependencies(op).empty() ? 0 : -std::numeric_limits<double>::infinity());
    for (OpIndex before : graph_.dependencies(op)) {
      const double* ends = ends_of(before);
      for (std::size_t lane = 0; lane < lane_count_; ++lane) starts[lane] = std::max(starts[lane], ends[lane]);
    }
    for (std::size_t lane = 0; lane < lane_count_; ++lane) {
      if (!scenario_.launch_delays.empty()) starts[lane] += value_of(scenario_.launch_delays[op], lane);
      if (!has(op, lane)) starts[lane] = 0;
    }
  }

  void end(OpIndex op, const double* begins) {
    double* ends = ends_of(op);
    for (std::size_t lane = 0; lane < lane_count_; ++lane) {
      ends[lane] = has(op, lane) ? begins[lane] + value_of(scenario_.durations[op], lane) : 0;
    }
  }

  void complete(const Group& group) {
    group_start_.assign(starts_of(group.members.front()), starts_of(group.members.front()) + lane_count_);
    for (OpIndex member : group.members) {
      const double* starts = starts_of(member);
      for (std::size_t lane = 0; lane < lane_count_; ++lane) {
        group_start_[lane] = std::max(group_start_[lane], starts[lane]);
      }
    }
    if (group.spans_dp) wait_for_dp_ranks(group);
    for (OpIndex member : group.members) end(member, group_start_.data());
  }

  void wait_for_dp_ranks(const Group& group) {
    std::vector<double> last(dp_size_);
    for (std::size_t first = 0; first < lane_count_; first += dp_size_) {
      for (std::size_t i = 0; i < dp_size_; ++i) {
        last[i] = group_start_[first + i];
        for (std::size_t other = 0; other < dp_size_; ++other) {
          if (group.joins(i, other)) last[i] = std::max(last[i], group_start_[first + other]);
        }
      }
      std::copy(last.begin(), last.end(), group_start_.begin() + static_cast<std::ptrdiff_t>(first));
    }
  }

  const OpGraph& graph_;
  const Scenario& scenario_;
  const LaneMask* takes_part_;
  std::size_t dp_size_;
  std::size_t lane_count_;
  LaneBuffer starts_;
  LaneBuffer ends_;
  std::vector<std::size_t> started_;  // members of each group
  std::vector<double> group_start_;
};

void add_row(const Op& op, const OpTimes& times, OpIndex index, std::size_t lane, IdealTimeline& timeline) {
  timeline.stage.push_back(op.stage);
  timeline.kind.push_back(static_cast<std::uint8_t>(op.kind));
  timeline.seq_id.push_back(op.seq_id);
  timeline.chunk.push_back(op.chunk);
  timeline.microbatch.push_back(op.microbatch);
  timeline.start_ns.push_back(std::llround(times.starts(index)[lane]));
  timeline.end_ns.push_back(std::llround(times.ends(index)[lane]));
}

}  // namespace

OpTimes replay_times(const OpGraph& graph, std::size_t dp_size, std::size_t step_count, const Scenario& scenario,
                     const LaneMask* takes_part) {
  return TimedReplay(graph, dp_size, step_count, scenario, takes_part).run();
}

IdealTimeline ideal_timeline(const MeasuredJob& job, const JobLayout& layout) {
  const auto dp_size = static_cast<std::size_t>(layout.dp_size);
  const WhatIf what_if(job.graph, job.timing, dp_size, static_cast<std::size_t>(layout.pp_size));
  const LaneMask& takes_part = job.timing.takes_part;
  const OpTimes times = replay_times(job.graph, dp_size, what_if.step_count(), what_if.ideal(), &takes_part);
  IdealTimeline timeline;
  for (std::size_t lane = 0; lane < times.lane_count; ++lane) {
    for (OpIndex op : job.graph.order()) {
      if (!takes_part.has(op, lane)) continue;
      timeline.step.push_back(job.steps[lane / dp_size]);
      timeline.dp_rank.push_back(static_cast<std::int32_t>(lane % dp_size));
      add_row(job.graph.op(op), times, op, lane, timeline);
    }
  }
  return timeline;
}

}  // namespace smon_rt::analysis
