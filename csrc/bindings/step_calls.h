#pragma once

#include <Python.h>

namespace smon_rt::bindings {

/// What integrations do of the step that has begun, with the script's number of it or None. False: an exception is set.
bool step_begun(PyObject* number);
/// The step ends, and with it what hooks still hold of it. False: an exception is set.
bool end_step();

/// The type `step`. A new reference, nullptr with an exception set.
PyObject* make_step_type(PyObject* module);

}  // namespace smon_rt::bindings
