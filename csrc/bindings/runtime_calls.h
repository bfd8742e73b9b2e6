#pragma once

#include <Python.h>

namespace smon_rt::bindings {

/// The calls of a training step (begin, end, …) as plain CPython functions: a pybind11 function costs three times as
/// much as the recorder itself. Ends with an empty entry; of static storage.
PyMethodDef* runtime_calls();

/// The type `span`. A new reference, nullptr with an exception set.
PyObject* make_span_type(PyObject* module);

}  // namespace smon_rt::bindings
