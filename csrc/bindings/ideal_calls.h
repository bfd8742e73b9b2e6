#pragma once

#include <pybind11/pybind11.h>

#include <string>

namespace smon_rt::analysis {

/// The job without stragglers as columns: name to the bytes of its values, in the machine's order.
pybind11::dict ideal_timeline_of_batch(const pybind11::object& batch, const pybind11::dict& meta,
                                       const std::string& rules);

}  // namespace smon_rt::analysis
