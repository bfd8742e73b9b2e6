#pragma once

#include <Python.h>

#include "bindings/collective_table.h"

namespace smon_rt::bindings {

/// The hooks of one process group, (before, after): a new tuple, nullptr with an exception set. The arguments are those
/// of make_collective_hooks() in _runtime.pyi.
PyObject* make_collective_hooks(PyObject* module, PyObject* const* args, Py_ssize_t count);
/// Number of the recording that hooks act in; 0: they do not.
PyObject* act_on_collectives(PyObject* module, PyObject* recording);
/// Gives kinds to the operations that this thread issues from here on, and returns what did before.
PyObject* exchange_kinds(PyObject* module, PyObject* kinds);

/// The operation has been issued: its span ends with the wait for this work, or now if there is none. Either it was
/// done inside the call, or it is one of several that have one work together, which no hook sees. False: an exception
/// is set.
bool operation_issued(const Begun& begun, PyObject* work, bool is_coalesced);

/// Hands an error to Python, which says it once. False: it is one that must go on to the caller, and stays set.
bool swallow_error();

/// Makes the types and names that hooks need. False: an exception is set.
bool set_up_hooks(PyObject* module);

}  // namespace smon_rt::bindings
