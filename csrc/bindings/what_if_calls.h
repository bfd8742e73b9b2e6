#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace smon_rt::analysis {

/// `_analysis.what_if`: python/smon_rt/_analysis.pyi says what it takes and returns.
pybind11::list what_if_batch(const pybind11::object& batch, const pybind11::dict& meta, const pybind11::list& questions,
                             const pybind11::object& progress, const std::string& rules);

}  // namespace smon_rt::analysis
