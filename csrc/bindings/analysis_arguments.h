#pragma once

#include <pybind11/pybind11.h>

#include <optional>
#include <string>
#include <utility>

#include "analysis/arrow_c_data.h"
#include "analysis/measured_job.h"
#include "analysis/op_columns.h"

namespace smon_rt::analysis {

/// Thrown across the binding only, where it becomes _analysis.AnalysisError: the engine itself reports by Result.
struct AnalysisError {
  std::string message;
};

/// Owns what __arrow_c_array__ hands out: two capsules that release their contents when they go.
/// Throws TypeError, and AnalysisError for a batch that was released before.
class ArrowBatch {
 public:
  explicit ArrowBatch(const pybind11::object& batch);

  const ArrowSchema& schema() const { return *get<ArrowSchema>(0, "arrow_schema"); }
  const ArrowArray& array() const { return *get<ArrowArray>(1, "arrow_array"); }
  /// The engine's columns, which live as long as this. Throws AnalysisError.
  OpColumns columns() const;

 private:
  template <typename T>
  T* get(std::size_t index, const char* name) const {
    void* pointer = PyCapsule_GetPointer(pybind11::object(capsules_[index]).ptr(), name);
    if (pointer == nullptr) throw pybind11::error_already_set();
    return static_cast<T*>(pointer);
  }

  pybind11::tuple capsules_;
};

/// Throws AnalysisError for a size that is missing or no number.
JobLayout layout_of(const pybind11::dict& meta);

/// Throws ValueError for unknown rules, AnalysisError for a bad clock bound.
AnalyzeOptions options_of(const std::string& rules, const pybind11::dict& meta);

/// Between replays: gives Ctrl-C and the progress bar their turn. An exception they raise is kept for later, since it
/// must not unwind through the engine.
class ProgressCall {
 public:
  explicit ProgressCall(pybind11::object callback) : callback_(std::move(callback)) {}

  bool operator()(int done, int total);
  void rethrow();

 private:
  pybind11::object callback_;
  std::optional<pybind11::error_already_set> error_;
};

}  // namespace smon_rt::analysis
