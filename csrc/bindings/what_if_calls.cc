#include "bindings/what_if_calls.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/what_if_question.h"
#include "bindings/analysis_arguments.h"
#include "format/kind.h"

namespace py = pybind11;

namespace smon_rt::analysis {
namespace {

constexpr double kSecondsPerNs = 1e-9;

Kind kind_of(const std::string& name) {
  const auto* found = std::find(kKindNames.begin(), kKindNames.end(), name);
  if (found == kKindNames.end()) throw py::value_error("there is no kind '" + name + "'");
  return static_cast<Kind>(found - kKindNames.begin());
}

Microbatches microbatches_of(const std::string& name) {
  if (name == "recorded") return Microbatches::kAsRecorded;
  if (name == "even") return Microbatches::kEven;
  if (name == "rebalanced") return Microbatches::kRebalanced;
  throw py::value_error("microbatches must be 'recorded', 'even' or 'rebalanced', not '" + name + "'");
}

LaunchDelays launch_delays_of(const std::string& name) {
  if (name == "recorded") return LaunchDelays::kRecorded;
  if (name == "explained") return LaunchDelays::kExplained;
  if (name == "none") return LaunchDelays::kNone;
  throw py::value_error("launch_delays must be 'recorded', 'explained' or 'none', not '" + name + "'");
}

HostWork work_of(const std::string& name) {
  if (name == "gc") return HostWork::kGc;
  if (name == "data_loading") return HostWork::kDataLoading;
  if (name == "checkpoint") return HostWork::kCheckpoint;
  throw py::value_error("work of the host must be 'gc', 'data_loading' or 'checkpoint', not '" + name + "'");
}

std::vector<Kind> kinds_of(const py::handle& names) {
  std::vector<Kind> kinds;
  for (const std::string& name : names.cast<std::vector<std::string>>()) kinds.push_back(kind_of(name));
  return kinds;
}

void set_part(Question& question, const std::string& key, const py::handle& value) {
  if (key == "ideal_kinds") {
    question.ideal_kinds = kinds_of(value);
  } else if (key == "scales") {
    for (const auto& [kind, dp_rank, stage, factor] :
         value.cast<std::vector<std::tuple<std::string, int, int, double>>>()) {
      question.scales.push_back({kind_of(kind), dp_rank, stage, factor});
    }
  } else if (key == "fixed_workers") {
    question.fixed_workers = value.cast<decltype(question.fixed_workers)>();
  } else if (key == "fixed_members") {
    question.fixed_members = value.cast<decltype(question.fixed_members)>();
  } else if (key == "fixed_stages") {
    question.fixed_stages = value.cast<decltype(question.fixed_stages)>();
  } else if (key == "fixed_links") {
    for (const auto& [dp_rank, stage, peer_stage] : value.cast<std::vector<std::tuple<int, int, int>>>()) {
      question.fixed_links.push_back({dp_rank, stage, peer_stage});
    }
  } else if (key == "fixed_groups") {
    question.fixed_groups = value.cast<decltype(question.fixed_groups)>();
  } else if (key == "removed_work") {
    for (const auto& [work, dp_rank, stage] : value.cast<std::vector<std::tuple<std::string, int, int>>>()) {
      question.removed_work.push_back({work_of(work), {dp_rank, stage}});
    }
  } else if (key == "prompt_workers") {
    question.prompt_workers = value.cast<decltype(question.prompt_workers)>();
  } else if (key == "microbatches") {
    question.microbatches = microbatches_of(value.cast<std::string>());
  } else if (key == "launch_delays") {
    question.launch_delays = launch_delays_of(value.cast<std::string>());
  } else if (key == "had_launch_delays") {
    question.had_launch_delays = value.cast<bool>();
  } else if (key == "dropped_dp_count") {
    question.dropped_dp_count = value.cast<std::size_t>();
  } else if (key == "dp_count") {
    question.dp_count = value.cast<std::size_t>();
  } else {
    throw py::value_error("a question has no part '" + key + "'");
  }
}

// What is not said keeps the value that asks for nothing.
Question question_of(const py::dict& parts) {
  Question question;
  for (const auto& [key, value] : parts) {
    const auto name = key.cast<std::string>();
    try {
      set_part(question, name, value);
    } catch (const py::cast_error&) {
      throw py::type_error("'" + name + "' of a question is of another type");
    }
  }
  return question;
}

py::list to_seconds(const std::vector<double>& values_ns) {
  py::list values_s;
  for (double value : values_ns) values_s.append(value * kSecondsPerNs);
  return values_s;
}

py::dict to_dict(const QuestionAnswer& answer, const std::vector<std::int64_t>& steps) {
  py::dict result;
  result["steps"] = steps;
  result["before_s"] = to_seconds(answer.before_ns);
  result["after_s"] = to_seconds(answer.after_ns);
  result["dropped_dp_ranks"] = answer.dropped_dp_ranks;
  result["dp_count"] = answer.dp_count;
  result["draw_count"] = answer.draw_count;
  return result;
}

}  // namespace

py::list what_if_batch(const py::object& batch, const py::dict& meta, const py::list& questions,
                       const py::object& progress, const std::string& rules) {
  const JobLayout layout = layout_of(meta);
  const AnalyzeOptions options = options_of(rules, meta);
  std::vector<Question> asked;
  for (const py::handle& question : questions) asked.push_back(question_of(py::cast<py::dict>(question)));
  const ArrowBatch arrow(batch);
  const OpColumns columns = arrow.columns();
  ProgressCall on_progress(progress);
  std::vector<std::int64_t> steps;
  Result<std::vector<QuestionAnswer>> answers = [&]() -> Result<std::vector<QuestionAnswer>> {
    py::gil_scoped_release no_gil;
    auto job = measure_job(columns, layout, options);
    if (!job) return job.error();
    steps = std::move(job->steps);
    const WhatIf what_if(job->graph, job->timing, static_cast<std::size_t>(layout.dp_size),
                         static_cast<std::size_t>(layout.pp_size));
    return ask(
        what_if, job->explained_delays, asked, [&](int done, int total) { return on_progress(done, total); },
        job->member_excess);
  }();
  on_progress.rethrow();
  if (!answers) throw AnalysisError{answers.error().message};
  py::list result;
  for (const QuestionAnswer& answer : *answers) result.append(to_dict(answer, steps));
  return result;
}

}  // namespace smon_rt::analysis
