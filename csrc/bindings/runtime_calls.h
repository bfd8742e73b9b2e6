#pragma once

#include <Python.h>

namespace smon_rt::bindings {

/// The calls of a training step (begin, end, …) as plain CPython functions: a pybind11 function costs three times as
/// much as the recorder itself. Ends with an empty entry; of static storage.
PyMethodDef* runtime_calls();

/// Those that integrations with frameworks make, in the same form: operations of process groups, and the forward of a
/// model that awaits its backward.
PyMethodDef* collective_calls();
PyMethodDef* forward_calls();

/// Makes what collective_calls() needs. Once, when the module is loaded; false with an exception set.
bool set_up_collectives(PyObject* module);

/// The type `span`. A new reference, nullptr with an exception set.
PyObject* make_span_type(PyObject* module);

}  // namespace smon_rt::bindings
