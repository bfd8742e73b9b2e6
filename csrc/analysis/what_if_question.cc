#include "analysis/what_if_question.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>

#include "analysis/comm_causes.h"
#include "analysis/compute_causes.h"
#include "analysis/job_edit.h"
#include "analysis/lane_choice.h"
#include "analysis/rebalance.h"
#include "analysis/slowdowns.h"

namespace smon_rt::analysis {
namespace {

constexpr std::size_t kDrawCount = 8;
constexpr const char* kStopped = "stopped";
// Of a step with all of its dp ranks: 512 Mi of them are 8 GiB while they are replayed.
constexpr std::size_t kMostValuesPerStep = std::size_t{512} << 20;

bool contains(const std::vector<Kind>& kinds, Kind kind) {
  return std::find(kinds.begin(), kinds.end(), kind) != kinds.end();
}

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

void repair_computes(const WhatIf& what_if, std::span<const MemberExcess> excess, const Question& question,
                     JobEdit& edit) {
  std::vector<std::pair<std::size_t, std::size_t>> members = question.fixed_members;
  members.insert(members.end(), question.fixed_workers.begin(), question.fixed_workers.end());
  repair_members(edit, what_if, excess, members);
  if (question.fixed_workers.empty() && question.fixed_stages.empty() &&
      question.microbatches == Microbatches::kAsRecorded) {
    return;
  }
  const ComputeFactors factors = compute_factors(what_if, excess);
  std::vector<std::size_t> stages = question.fixed_stages;
  if (what_if.dp_size() > 1) {
    repair_workers(edit, what_if, factors, question.fixed_workers);
  } else {
    for (const auto& [dp_rank, stage] : question.fixed_workers) stages.push_back(stage);
  }
  std::sort(stages.begin(), stages.end());
  stages.erase(std::unique(stages.begin(), stages.end()), stages.end());
  for (std::size_t stage : stages) repair_stage(edit, what_if, factors, stage);
  if (question.microbatches == Microbatches::kEven) even_out_microbatches(edit, what_if, factors);
  if (question.microbatches == Microbatches::kRebalanced) rebalance_microbatches(edit, what_if, factors);
}

void keep_explained_delays(const WhatIf& what_if, std::span<const ExplainedDelay> explained, JobEdit& edit) {
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    std::fill_n(edit.launch_delays_ns(op), what_if.timing().lane_count, 0.0);
  }
  for (const ExplainedDelay& delay : explained) edit.launch_delays_ns(delay.op)[delay.lane] = delay.total_ns();
}

// Kinds that are said to take their ideal come last: whatever factor was theirs is gone then.
JobEdit edited(const WhatIf& what_if, std::span<const ExplainedDelay> explained, std::span<const MemberExcess> excess,
               const Question& question) {
  const bool has_delays = question.launch_delays != LaunchDelays::kNone;
  JobEdit edit(what_if, has_delays);
  if (question.launch_delays == LaunchDelays::kExplained) keep_explained_delays(what_if, explained, edit);
  for (const auto& [dp_rank, stage] : question.prompt_workers) {
    if (question.launch_delays == LaunchDelays::kRecorded) {
      repair_launch_delays(edit, what_if, explained, dp_rank, stage);
    }
  }
  // Without launch delays there are none to take away.
  const auto of_delays = has_delays ? explained : std::span<const ExplainedDelay>();
  for (const RemovedWork& it : question.removed_work) remove_host_work(edit, what_if, of_delays, it.work, it.place);
  for (const RepairedLink& it : question.fixed_links) {
    repair_link(edit, what_if, it.dp_rank, it.stage, it.peer_stage);
  }
  for (std::size_t stage : question.fixed_groups) repair_group(edit, what_if, static_cast<int>(stage));
  repair_computes(what_if, excess, question, edit);
  for (const DurationScale& it : question.scales) scale(what_if, it, edit);
  for (OpIndex op = 0; op < what_if.graph().size(); ++op) {
    if (contains(question.ideal_kinds, what_if.graph().op(op).kind)) {
      take_ideal(what_if, op, edit.durations_ns(op));
    }
  }
  return edit;
}

std::optional<Error> refuse(const WhatIf& what_if, const Question& question) {
  const auto is_outside = [](auto place, std::size_t size) {
    return place >= 0 && static_cast<std::size_t>(place) >= size;
  };
  const auto is_no_worker = [&](const auto& worker) {
    return is_outside(worker.first, what_if.dp_size()) || is_outside(worker.second, what_if.pp_size());
  };
  const auto is_no_stage = [&](std::size_t stage) { return is_outside(stage, what_if.pp_size()); };
  const auto is_no_host_place = [&](const RemovedWork& it) {
    return is_outside(it.place.dp_rank, what_if.dp_size()) || is_outside(it.place.stage, what_if.pp_size());
  };
  if (std::any_of(question.fixed_workers.begin(), question.fixed_workers.end(), is_no_worker) ||
      std::any_of(question.fixed_members.begin(), question.fixed_members.end(), is_no_worker) ||
      std::any_of(question.prompt_workers.begin(), question.prompt_workers.end(), is_no_worker)) {
    return Error{"a worker is outside the job"};
  }
  if (std::any_of(question.fixed_stages.begin(), question.fixed_stages.end(), is_no_stage) ||
      std::any_of(question.fixed_groups.begin(), question.fixed_groups.end(), is_no_stage)) {
    return Error{"a stage is outside the job"};
  }
  if (std::any_of(question.removed_work.begin(), question.removed_work.end(), is_no_host_place)) {
    return Error{"a place of the host's work is outside the job"};
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
Result<QuestionAnswer> replay_other_ranks(const WhatIf& what_if, const Question& question, const Scenario& scenario,
                                          ReplayCounter& counter) {
  Remaining remaining = drop_slowest(what_if, scenario, question.dropped_dp_count);
  const std::size_t dp_count = question.dp_count == 0 ? remaining.kept.size() : question.dp_count;
  QuestionAnswer answer;
  answer.dropped_dp_ranks = std::move(remaining.dropped);
  answer.dp_count = dp_count;
  // Who is drawn for a place that joins only a part of the others is not known, who stays is.
  auto graph = graph_of_dp_ranks(what_if.graph(), remaining.kept);
  if (!graph) return graph.error();
  if (dp_count == remaining.kept.size()) {
    answer.after_ns = replay_lanes(what_if, scenario, *graph, choose_dp_ranks(what_if, remaining.kept), &counter);
    if (counter.stopped()) return Error{kStopped};
    return answer;
  }
  answer.draw_count = kDrawCount;
  answer.after_ns.assign(what_if.step_count(), 0);
  for (std::size_t draw = 0; draw < kDrawCount; ++draw) {
    const LaneChoice choice = draw_dp_ranks(what_if, scenario, remaining.kept, dp_count, draw);
    const std::vector<double> step_ns = replay_lanes(what_if, scenario, *graph, choice, &counter);
    if (counter.stopped()) return Error{kStopped};
    for (std::size_t step = 0; step < step_ns.size(); ++step) answer.after_ns[step] += step_ns[step] / kDrawCount;
  }
  return answer;
}

// Answers questions, and remembers what several of them need.
class Asker {
 public:
  Asker(const WhatIf& what_if, std::span<const ExplainedDelay> explained, std::span<const MemberExcess> excess,
        ReplayCounter& counter)
      : what_if_(what_if), explained_(explained), excess_(excess), counter_(counter) {}

  Result<QuestionAnswer> answer(const Question& question) {
    auto answer = replay(question, edited(what_if_, explained_, excess_, question).take());
    if (answer) answer->before_ns = before(question.had_launch_delays);
    return answer;
  }

 private:
  Result<QuestionAnswer> replay(const Question& question, const Scenario& scenario) const {
    if (question.dropped_dp_count > 0 || question.dp_count > 0) {
      return replay_other_ranks(what_if_, question, scenario, counter_);
    }
    QuestionAnswer answer;
    answer.dp_count = what_if_.dp_size();
    answer.after_ns = what_if_.simulator().replay(scenario).last;
    return answer;
  }

  const std::vector<double>& before(bool has_launch_delays) {
    std::vector<double>& steps = before_ns_[has_launch_delays ? 1 : 0];
    if (steps.empty()) {
      steps = what_if_.simulator().replay(has_launch_delays ? what_if_.recorded() : what_if_.nodelay()).last;
    }
    return steps;
  }

  const WhatIf& what_if_;
  std::span<const ExplainedDelay> explained_;
  std::span<const MemberExcess> excess_;
  ReplayCounter& counter_;
  std::array<std::vector<double>, 2> before_ns_;
};

}  // namespace

Result<std::vector<QuestionAnswer>> ask(const WhatIf& what_if, std::span<const ExplainedDelay> explained,
                                        const std::vector<Question>& questions, const Progress& progress,
                                        std::span<const MemberExcess> excess) {
  for (const Question& question : questions) {
    if (auto refused = refuse(what_if, question)) return *refused;
  }
  ReplayCounter counter(progress, static_cast<int>(questions.size()));
  Asker asker(what_if, explained, excess, counter);
  std::vector<QuestionAnswer> answers;
  for (const Question& question : questions) {
    if (!counter.next()) return Error{kStopped};
    auto answer = asker.answer(question);
    if (!answer) return answer.error();
    answers.push_back(std::move(*answer));
  }
  return answers;
}

}  // namespace smon_rt::analysis
