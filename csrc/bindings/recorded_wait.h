#pragma once

#include <Python.h>

namespace smon_rt::bindings {

/// A method that calls `original` and ends the span of the work that it is called of. A new reference.
PyObject* recorded_wait(PyObject* module, PyObject* original);

/// Makes its type. False: an exception is set.
bool set_up_wait(PyObject* module);

}  // namespace smon_rt::bindings
