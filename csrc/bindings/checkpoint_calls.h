#pragma once

#include <pybind11/pybind11.h>

namespace smon_rt::bindings {

/// smon_rt._runtime.Checkpoint: the C interface of checkpoints (smon_rt.h), call by call. What fails returns a result
/// other than OK, and last_error says why.
void add_checkpoint_calls(pybind11::module_& module);

}  // namespace smon_rt::bindings
