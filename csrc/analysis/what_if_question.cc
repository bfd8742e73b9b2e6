#include "analysis/what_if_question.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "analysis/evidence.h"
#include "analysis/job_edit.h"
#include "analysis/lane_choice.h"
#include "analysis/microbatch_factors.h"
#include "analysis/slowdowns.h"
#include "analysis/statistics.h"

namespace smon_rt::analysis {
namespace {

constexpr std::size_t kDrawCount = 8;
// Of a step with all of its dp ranks: 512 Mi of them are 8 GiB while they are replayed.
constexpr std::size_t kMostValuesPerStep = std::size_t{512} << 20;
constexpr std::array kPasses = {Kind::kForwardCompute, Kind::kBackwardCompute, Kind::kForwardBackwardCombined};

using Places = std::vector<std::pair<std::size_t, std::size_t>>;

bool contains(const std::vector<Kind>& kinds, Kind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

double finite_median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  return values.empty() ? std::nan("") : median(values);
}

// How many times as long as its peers; what is no slower stays.
double slowness(double own, double peers) {
  return own > peers && peers > 0 ? own / peers : 1;
}

// Medians of one kind, as [dp_rank · pp_size + stage], and what fixing places divides by.
class WorkerTimes {
 public:
  WorkerTimes(const WhatIf& what_if, Kind kind)
      : dp_size_(what_if.dp_size()), pp_size_(what_if.pp_size()), medians_(worker_medians_ns(what_if, kind)) {}

  double stage_slowness(std::size_t stage) const {
    std::vector<double> others;
    for (std::size_t other = 0; other < pp_size_; ++other) {
      if (other != stage) others.push_back(typical(other));
    }
    return slowness(typical(stage), finite_median(others));
  }

  // The peers are the workers of its stage that are not to be fixed themselves, if there are any.
  double worker_slowness(std::size_t dp_rank, std::size_t stage, const Places& fixed) const {
    if (dp_size_ == 1) return stage_slowness(stage);
    std::vector<double> others, healthy;
    for (std::size_t other = 0; other < dp_size_; ++other) {
      if (other == dp_rank) continue;
      others.push_back(at(other, stage));
      if (std::find(fixed.begin(), fixed.end(), std::pair(other, stage)) == fixed.end()) {
        healthy.push_back(at(other, stage));
      }
    }
    const double of_healthy = finite_median(healthy);
    return slowness(at(dp_rank, stage), std::isfinite(of_healthy) ? of_healthy : finite_median(others));
  }

 private:
  double at(std::size_t dp_rank, std::size_t stage) const { return medians_[dp_rank * pp_size_ + stage]; }
  // With two workers the smaller: stragglers are slow, not fast.
  double typical(std::size_t stage) const {
    std::vector<double> values;
    for (std::size_t dp_rank = 0; dp_rank < dp_size_; ++dp_rank) values.push_back(at(dp_rank, stage));
    return dp_size_ == 2 ? std::fmin(values[0], values[1]) : finite_median(values);
  }

  std::size_t dp_size_;
  std::size_t pp_size_;
  std::vector<double> medians_;
};

void scale(const WhatIf& what_if, const DurationScale& scale, JobEdit& edit) {
  const std::size_t first = scale.dp_rank < 0 ? 0 : static_cast<std::size_t>(scale.dp_rank);
  const std::size_t stride = scale.dp_rank < 0 ? 1 : what_if.dp_size();
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Op& it = what_if.graph().op(op);
    if (it.kind != scale.kind || (scale.stage >= 0 && it.stage != scale.stage)) continue;
    double* durations = edit.durations_ns(op);
    for (std::size_t lane = first; lane < what_if.timing().lane_count; lane += stride) durations[lane] *= scale.factor;
  }
}

void fix_places(const WhatIf& what_if, const Question& question, JobEdit& edit) {
  if (question.fixed_workers.empty() && question.fixed_stages.empty()) return;
  for (Kind kind : kPasses) {
    const WorkerTimes times(what_if, kind);
    for (const auto& [dp_rank, stage] : question.fixed_workers) {
      const double slower = times.worker_slowness(dp_rank, stage, question.fixed_workers);
      scale(what_if, {kind, static_cast<int>(dp_rank), static_cast<int>(stage), 1 / slower}, edit);
    }
    for (std::size_t stage : question.fixed_stages) {
      scale(what_if, {kind, -1, static_cast<int>(stage), 1 / times.stage_slowness(stage)}, edit);
    }
  }
}

// Kinds that are said to take another time come last: whatever factor was theirs is gone then.
JobEdit edited(const WhatIf& what_if, const Question& question) {
  JobEdit edit(what_if, question.has_launch_delays);
  fix_places(what_if, question, edit);
  for (const DurationScale& it : question.scales) scale(what_if, it, edit);
  if (question.microbatches != Microbatches::kAsRecorded) {
    const MicrobatchFactors factors(what_if);
    question.microbatches == Microbatches::kEven ? factors.even_out(edit) : factors.rebalance(edit);
  }
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    const Kind kind = what_if.graph().op(op).kind;
    if (contains(question.ideal_kinds, kind)) edit.set_duration_ns(op, what_if.ideal_durations()[op]);
    if (contains(question.vanishing_kinds, kind)) edit.set_duration_ns(op, 0);
  }
  return edit;
}

std::optional<Error> refuse(const WhatIf& what_if, const Question& question) {
  const auto is_outside = [](auto place, std::size_t size) { return place >= 0 && std::size_t(place) >= size; };
  for (const auto& [dp_rank, stage] : question.fixed_workers) {
    if (is_outside(dp_rank, what_if.dp_size()) || is_outside(stage, what_if.pp_size())) {
      return Error{"worker " + std::to_string(dp_rank) + "," + std::to_string(stage) + " is outside the job"};
    }
  }
  for (std::size_t stage : question.fixed_stages) {
    if (is_outside(stage, what_if.pp_size())) return Error{"stage " + std::to_string(stage) + " is outside the job"};
  }
  for (const DurationScale& it : question.scales) {
    if (is_outside(it.dp_rank, what_if.dp_size()) || is_outside(it.stage, what_if.pp_size())) {
      return Error{"a place to scale is outside the job"};
    }
    if (!(it.factor > 0) || !std::isfinite(it.factor)) return Error{"a factor of durations must be a positive number"};
  }
  if (question.dropped_dp_count >= what_if.dp_size()) return Error{"no dp rank is left"};
  const bool draws = question.dp_count > 0 && question.dp_count != what_if.dp_size() - question.dropped_dp_count;
  if (draws && !joins_all_dp_ranks(what_if.graph())) {
    return Error{"some collectives join only a part of the dp ranks: where drawn ones would belong is not known"};
  }
  if (question.dp_count > kMostValuesPerStep / std::max(std::size_t{1}, what_if.graph().size())) {
    return Error{std::to_string(question.dp_count) + " dp ranks of this job are more than can be replayed"};
  }
  return std::nullopt;
}

// All but those that alone take longest, in order; and those.
struct Remaining {
  std::vector<std::size_t> kept, dropped;
};

Remaining drop_slowest(const WhatIf& what_if, const Scenario& scenario, std::size_t count) {
  Remaining result;
  std::vector<std::size_t> order(what_if.dp_size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (count > 0) {
    const std::vector<double> lanes = own_lane_ns(what_if, scenario);
    std::vector<double> own(what_if.dp_size(), 0);
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) own[lane % what_if.dp_size()] += lanes[lane];
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return own[a] > own[b]; });
  }
  const auto middle = order.begin() + static_cast<std::ptrdiff_t>(count);
  result.dropped.assign(order.begin(), middle);
  result.kept.assign(middle, order.end());
  std::sort(result.kept.begin(), result.kept.end());
  return result;
}

// With other dp ranks than were recorded.
Result<QuestionAnswer> replay_other_ranks(const WhatIf& what_if, const Question& question, const Scenario& scenario) {
  Remaining remaining = drop_slowest(what_if, scenario, question.dropped_dp_count);
  const std::size_t dp_count = question.dp_count == 0 ? remaining.kept.size() : question.dp_count;
  QuestionAnswer answer;
  answer.dropped_dp_ranks = std::move(remaining.dropped);
  answer.dp_count = dp_count;
  // Who is drawn for a place that joins only a part of the others is not known, who stays is.
  auto graph = graph_of_dp_ranks(what_if.graph(), remaining.kept);
  if (!graph) return graph.error();
  if (dp_count == remaining.kept.size()) {
    answer.after_ns = replay_lanes(what_if, scenario, *graph, choose_dp_ranks(what_if, remaining.kept));
    return answer;
  }
  answer.draw_count = kDrawCount;
  answer.after_ns.assign(what_if.step_count(), 0);
  for (std::size_t draw = 0; draw < kDrawCount; ++draw) {
    const LaneChoice choice = draw_dp_ranks(what_if, scenario, remaining.kept, dp_count, draw);
    const std::vector<double> step_ns = replay_lanes(what_if, scenario, *graph, choice);
    for (std::size_t step = 0; step < step_ns.size(); ++step) answer.after_ns[step] += step_ns[step] / kDrawCount;
  }
  return answer;
}

Result<QuestionAnswer> answer_to(const WhatIf& what_if, const Question& question) {
  const JobEdit edit = edited(what_if, question);
  if (question.dropped_dp_count > 0 || question.dp_count > 0) {
    return replay_other_ranks(what_if, question, edit.scenario());
  }
  QuestionAnswer answer;
  answer.dp_count = what_if.dp_size();
  answer.after_ns = what_if.simulator().replay(edit.scenario()).last;
  return answer;
}

}  // namespace

Result<std::vector<QuestionAnswer>> ask(const WhatIf& what_if, const std::vector<Question>& questions,
                                        const Progress& progress) {
  for (const Question& question : questions) {
    if (auto refused = refuse(what_if, question)) return *refused;
  }
  ReplayCounter counter(progress, static_cast<int>(questions.size()) + 1);
  if (!counter.next()) return Error{"stopped"};
  const std::vector<double> recorded_ns = what_if.simulator().replay(what_if.recorded()).last;
  const std::vector<double> nodelay_ns = what_if.simulator().replay(what_if.nodelay()).last;
  std::vector<QuestionAnswer> answers;
  for (const Question& question : questions) {
    if (!counter.next()) return Error{"stopped"};
    auto answer = answer_to(what_if, question);
    if (!answer) return answer.error();
    answer->before_ns = question.had_launch_delays ? recorded_ns : nodelay_ns;
    answers.push_back(std::move(*answer));
  }
  return answers;
}

}  // namespace smon_rt::analysis
