#include "bindings/ideal_calls.h"

#include <utility>
#include <vector>

#include "analysis/ideal_timeline.h"
#include "bindings/analysis_arguments.h"

namespace py = pybind11;

namespace smon_rt::analysis {
namespace {

template <typename T>
py::bytes to_bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

py::dict ideal_timeline_of_batch(const py::object& batch, const py::dict& meta, const std::string& rules) {
  const JobLayout layout = layout_of(meta);
  const AnalyzeOptions options = options_of(rules, meta);
  const ArrowBatch arrow(batch);
  const OpColumns columns = arrow.columns();
  Result<IdealTimeline> timeline = [&]() -> Result<IdealTimeline> {
    py::gil_scoped_release no_gil;
    auto job = measure_job(columns, layout, options);
    if (!job) return job.error();
    return ideal_timeline(*job, layout);
  }();
  if (!timeline) throw AnalysisError{timeline.error().message};
  py::dict result;
  result["step"] = to_bytes(timeline->step);
  result["dp_rank"] = to_bytes(timeline->dp_rank);
  result["stage"] = to_bytes(timeline->stage);
  result["kind"] = to_bytes(timeline->kind);
  result["seq_id"] = to_bytes(timeline->seq_id);
  result["chunk"] = to_bytes(timeline->chunk);
  result["microbatch"] = to_bytes(timeline->microbatch);
  result["start_ns"] = to_bytes(timeline->start_ns);
  result["end_ns"] = to_bytes(timeline->end_ns);
  return result;
}

}  // namespace smon_rt::analysis
