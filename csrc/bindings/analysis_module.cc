// The Python module smon_rt._analysis: the analysis engine behind a few functions. Never loaded by a training process
// that records. python/smon_rt/_analysis.pyi holds the types.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/analyze.h"
#include "analysis/op_columns.h"
#include "bindings/analysis_arguments.h"
#include "bindings/ideal_calls.h"
#include "bindings/what_if_calls.h"
#include "format/kind.h"

namespace py = pybind11;

namespace smon_rt::analysis {
namespace {

constexpr double kSecondsPerNs = 1e-9;

std::vector<double> to_seconds(std::vector<double> values_ns) {
  for (double& value : values_ns) value *= kSecondsPerNs;
  return values_ns;
}

py::dict by_name(const Breakdown& breakdown) {
  py::dict result;
  for (std::size_t i = 0; i < breakdown.names.size(); ++i) result[py::str(breakdown.names[i])] = breakdown.ratios[i];
  return result;
}

py::dict by_name_by_step(const Breakdown& breakdown) {
  py::dict result;
  for (std::size_t i = 0; i < breakdown.names.size(); ++i) {
    result[py::str(breakdown.names[i])] = breakdown.ratios_by_step[i];
  }
  return result;
}

template <typename Of>
py::dict three_ways(const Breakdowns& breakdowns, Of of) {
  py::dict result;
  result["kind"] = of(breakdowns.kind);
  result["stage"] = of(breakdowns.stage);
  result["dp_rank"] = of(breakdowns.dp_rank);
  return result;
}

// [dp_rank · pp_size + stage] to [dp_rank][stage].
template <typename T>
py::list by_worker(const std::vector<T>& values, std::size_t pp_size) {
  py::list result;
  for (std::size_t begin = 0; begin < values.size(); begin += pp_size) {
    py::list row;
    for (std::size_t stage = 0; stage < pp_size; ++stage) row.append(py::cast(values[begin + stage]));
    result.append(row);
  }
  return result;
}

py::object known_or_none(double value, bool is_known) {
  return is_known ? py::object(py::float_(value)) : py::object(py::none());
}

py::list to_list(const std::vector<std::pair<std::size_t, std::size_t>>& workers) {
  py::list result;
  for (const auto& [dp_rank, stage] : workers) {
    py::list worker;
    worker.append(dp_rank);
    worker.append(stage);
    result.append(worker);
  }
  return result;
}

py::dict to_dict(const Contribution& contribution) {
  py::dict result;
  result["ratio"] = contribution.ratio;
  result["added_ratio"] = contribution.added_ratio;
  result["workers"] = to_list(contribution.workers);
  result["removed_s"] = contribution.removed_ns * kSecondsPerNs;
  result["added_s"] = contribution.added_ns * kSecondsPerNs;
  return result;
}

void put_slowdowns(py::dict& result, const Analysis& analysis, std::size_t pp_size) {
  py::dict slowdown;
  slowdown["value"] = analysis.slowdown;
  slowdown["low"] = known_or_none(analysis.slowdown_interval.low, analysis.slowdown_interval.is_known);
  slowdown["high"] = known_or_none(analysis.slowdown_interval.high, analysis.slowdown_interval.is_known);
  result["slowdown"] = slowdown;
  result["launch_slowdown"] = analysis.launch_slowdown;
  result["slowdown_by_step"] = analysis.slowdown_by_step;
  result["launch_slowdown_by_step"] = analysis.launch_slowdown_by_step;
  result["slowdown_by"] = three_ways(analysis.slowdowns, by_name);
  result["slowdown_by_by_step"] = three_ways(analysis.slowdowns, by_name_by_step);
  result["launch_slowdown_by"] = three_ways(analysis.launch_slowdowns, by_name);
  result["launch_slowdown_by_by_step"] = three_ways(analysis.launch_slowdowns, by_name_by_step);
  result["slowdown_by_worker"] = by_worker(analysis.worker_slowdowns, pp_size);
  result["slowdown_by_worker_by_step"] = by_worker(analysis.worker_slowdowns_by_step, pp_size);
  result["slowdown_by_worker_min"] = by_worker(analysis.worker_slowdowns_min, pp_size);
}

py::list to_list(const std::vector<CauseRemoval>& causes) {
  py::list result;
  for (const CauseRemoval& cause : causes) {
    py::dict entry, detail;
    entry["cause"] = cause.cause;
    entry["dp_rank"] = cause.dp_rank;
    entry["stage"] = cause.stage;
    entry["peer_stage"] = cause.peer_stage;
    entry["workers"] = to_list(cause.workers);
    py::list links;
    for (const CauseLink& link : cause.links) links.append(py::make_tuple(link.dp_rank, link.stage, link.peer_stage));
    entry["links"] = links;
    for (const auto& [name, value] : cause.detail) detail[py::str(name)] = value;
    entry["detail"] = detail;
    entry["step_s"] = to_seconds(cause.step_ns);
    result.append(entry);
  }
  return result;
}

void put_evidence(py::dict& result, const Analysis& analysis, std::size_t pp_size) {
  result["m_w"] = to_dict(analysis.slowest_workers);
  result["m_w_exact"] = to_dict(analysis.slowest_workers_exact);
  result["m_s"] = to_dict(analysis.last_stage);
  result["causes"] = to_list(analysis.causes);
  py::dict medians;
  medians["forward_compute"] = by_worker(to_seconds(analysis.forward_medians_ns), pp_size);
  medians["backward_compute"] = by_worker(to_seconds(analysis.backward_medians_ns), pp_size);
  result["worker_median_s"] = medians;
  py::dict forward_backward;
  forward_backward["correlation"] = analysis.forward_backward.correlation;
  forward_backward["forward_cv"] = analysis.forward_backward.forward_cv;
  result["forward_backward"] = forward_backward;
  py::dict fidelity, early_starts;
  early_starts["count"] = analysis.fidelity.early_start_count;
  early_starts["worst_s"] = analysis.fidelity.worst_early_start_ns * kSecondsPerNs;
  fidelity["simulation_error_mean"] = analysis.fidelity.simulation_error_mean;
  fidelity["simulation_error_worst"] = analysis.fidelity.simulation_error_worst;
  fidelity["unexplained_error_mean"] =
      known_or_none(analysis.fidelity.unexplained_error_mean, analysis.fidelity.knows_unexplained);
  fidelity["unexplained_error_worst"] =
      known_or_none(analysis.fidelity.unexplained_error_worst, analysis.fidelity.knows_unexplained);
  fidelity["early_starts"] = early_starts;
  py::dict negative_transfers;
  negative_transfers["count"] = analysis.fidelity.negative_transfer_count;
  negative_transfers["worst_s"] = analysis.fidelity.worst_negative_transfer_ns * kSecondsPerNs;
  fidelity["negative_transfers"] = negative_transfers;
  fidelity["clock_tolerance_s"] = analysis.fidelity.clock_tolerance_ns * kSecondsPerNs;
  result["fidelity"] = fidelity;
}

py::dict to_dict(const Analysis& analysis, const JobLayout& layout) {
  const auto pp_size = static_cast<std::size_t>(layout.pp_size);
  py::dict result, step_time_s;
  result["steps"] = analysis.steps;
  result["dp_size"] = layout.dp_size;
  result["pp_size"] = layout.pp_size;
  result["op_count"] = analysis.op_count;
  result["worker_rank"] = by_worker(analysis.worker_ranks, pp_size);
  step_time_s["base"] = to_seconds(analysis.base_step_ns);
  step_time_s["nodelay"] = to_seconds(analysis.nodelay_step_ns);
  step_time_s["ideal"] = to_seconds(analysis.ideal_step_ns);
  result["step_time_s"] = step_time_s;
  put_slowdowns(result, analysis, pp_size);
  put_evidence(result, analysis, pp_size);
  py::list left_out_steps;
  for (const LeftOutStep& left_out : analysis.left_out_steps) {
    py::dict step;
    step["step"] = left_out.step;
    step["reason"] = left_out.reason;
    left_out_steps.append(step);
  }
  result["left_out_steps"] = left_out_steps;
  result["absent_op_count"] = analysis.absent_op_count;
  result["wait_for_missing_s"] =
      known_or_none(analysis.wait_for_missing_ns * kSecondsPerNs, analysis.knows_wait_for_missing);
  return result;
}

py::dict analyze_batch(const py::object& batch, const py::dict& meta, const py::object& progress,
                       const std::string& rules) {
  const JobLayout layout = layout_of(meta);
  const AnalyzeOptions options = options_of(rules, meta);
  const ArrowBatch arrow(batch);
  const OpColumns columns = arrow.columns();
  ProgressCall on_progress(progress);
  const auto begin = std::chrono::steady_clock::now();
  Result<Analysis> analysis = [&] {
    py::gil_scoped_release no_gil;
    return analyze(columns, layout, [&](int done, int total) { return on_progress(done, total); }, options);
  }();
  const std::chrono::duration<double, std::milli> elapsed = std::chrono::steady_clock::now() - begin;
  on_progress.rethrow();
  if (!analysis) throw AnalysisError{analysis.error().message};
  py::dict result = to_dict(*analysis, layout);
  py::dict timing;
  timing["analyze"] = elapsed.count();
  result["timing_ms"] = timing;
  return result;
}

py::object bootstrap(const std::vector<double>& values, const std::vector<std::int64_t>& steps) {
  if (values.size() != steps.size()) throw py::value_error("values and steps must have the same length");
  const Interval interval = bootstrap_mean(values, steps);
  return interval.is_known ? py::object(py::make_tuple(interval.low, interval.high)) : py::object(py::none());
}

}  // namespace
}  // namespace smon_rt::analysis

// Nothing here is shared between calls.
PYBIND11_MODULE(_analysis, module, py::mod_gil_not_used()) {
  using namespace smon_rt::analysis;  // NOLINT: the module's own namespace
  module.doc() = "The what-if engine of smon_rt.";
  py::tuple names(smon_rt::kKindCount);
  for (std::size_t i = 0; i < smon_rt::kKindCount; ++i) names[i] = py::str(std::string(smon_rt::kKindNames[i]));
  module.attr("KIND_NAMES") = names;

  static PyObject* analysis_error = PyErr_NewException("smon_rt._analysis.AnalysisError", PyExc_ValueError, nullptr);
  module.attr("AnalysisError") = py::handle(analysis_error);
  py::register_exception_translator([](std::exception_ptr pending) {
    try {
      if (pending) std::rethrow_exception(pending);
    } catch (const AnalysisError& error) {
      PyErr_SetString(analysis_error, error.message.c_str());
    }
  });

  module.def("analyze", &analyze_batch, py::arg("batch"), py::arg("meta"), py::arg("progress") = py::none(),
             py::arg("rules") = "reference");
  module.def("what_if", &what_if_batch, py::arg("batch"), py::arg("meta"), py::arg("questions"),
             py::arg("progress") = py::none(), py::arg("rules") = "reference");
  module.def("ideal_timeline", &ideal_timeline_of_batch, py::arg("batch"), py::arg("meta"),
             py::arg("rules") = "reference");
  module.def("bootstrap_mean", &bootstrap, py::arg("values"), py::arg("steps"));
}
