#include "bindings/analysis_arguments.h"

#include <cstdint>

namespace smon_rt::analysis {

namespace py = pybind11;

ArrowBatch::ArrowBatch(const py::object& batch) {
  if (!py::hasattr(batch, "__arrow_c_array__")) {
    throw py::type_error("ops must offer __arrow_c_array__, as a pyarrow.RecordBatch does");
  }
  capsules_ = batch.attr("__arrow_c_array__")();
  if (capsules_.size() != 2) throw py::type_error("__arrow_c_array__ must return a schema and an array capsule");
  if (schema().release == nullptr || array().release == nullptr) {
    throw AnalysisError{"the Arrow record batch was released before: hand each one over once"};
  }
}

OpColumns ArrowBatch::columns() const {
  auto columns = view_arrow_columns(schema(), array());
  if (!columns) throw AnalysisError{columns.error().message};
  return *columns;
}

JobLayout layout_of(const py::dict& meta) {
  auto size = [&](const char* key) {
    if (!meta.contains(key)) throw AnalysisError{std::string("meta lacks ") + key};
    try {
      return meta[key].cast<std::int32_t>();
    } catch (const py::cast_error&) {
      throw AnalysisError{std::string(key) + " must be an integer below 2^31"};
    }
  };
  return {size("dp_size"), size("pp_size"), size("tp_size"), size("cp_size"), size("vpp_size"), size("world_size")};
}

AnalyzeOptions options_of(const std::string& rules, const py::dict& meta) {
  AnalyzeOptions options;
  if (rules == "ids") {
    options.rules = Rules::kIds;
  } else if (rules != "reference") {
    throw py::value_error("rules must be 'reference' or 'ids', not '" + rules + "'");
  }
  if (meta.contains("clock_bound_ns")) {
    try {
      options.clock_bound_ns = static_cast<double>(meta["clock_bound_ns"].cast<std::int64_t>());
    } catch (const py::cast_error&) {
      throw AnalysisError{"clock_bound_ns must be an integer of nanoseconds"};
    }
    if (options.clock_bound_ns < 0) throw AnalysisError{"clock_bound_ns must not be negative"};
  }
  return options;
}

bool ProgressCall::operator()(int done, int total) {
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) {
    if (callback_.is_none()) return true;
    try {
      callback_(done, total);
      return true;
    } catch (py::error_already_set& raised) {
      raised.restore();
    }
  }
  error_.emplace();
  return false;
}

void ProgressCall::rethrow() {
  if (error_) throw py::error_already_set(std::move(*error_));
}

}  // namespace smon_rt::analysis
