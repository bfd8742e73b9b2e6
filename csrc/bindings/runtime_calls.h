#pragma once

#include <Python.h>

namespace smon_rt::bindings {

/// The calls of a training step (begin, end, …) as plain CPython functions: a pybind11 function costs three times as
/// much as the recorder itself. Ends with an empty entry; of static storage.
PyMethodDef* runtime_calls();

/// Those that integrations with frameworks make, in the same form: operations of process groups, and the forward of a
/// model that awaits its backward, what a pipeline's schedule does, steps, optimizers, passes of plain models.
PyMethodDef* collective_calls();
PyMethodDef* forward_calls();
PyMethodDef* pipeline_calls();
PyMethodDef* hook_state_calls();
PyMethodDef* step_calls();
PyMethodDef* optimizer_calls();
PyMethodDef* pass_calls();

/// Begins a step for the recorder; `number` as a script gave it, or None. False: an exception is set.
bool begin_step(PyObject* number);

/// For callbacks whose errors Python drops.
PyMethodDef* late_error_calls();

/// Make what these need. Once, when the module is loaded; false with an exception set.
bool set_up_collectives(PyObject* module);
bool set_up_pipelines();

/// The type `span`. A new reference, nullptr with an exception set.
PyObject* make_span_type(PyObject* module);

}  // namespace smon_rt::bindings
