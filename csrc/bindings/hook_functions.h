#pragma once

#include <Python.h>

// Hooks that torch calls as functions of C++: no object is made for their arguments, and no GIL is taken.
//
// torch's register_pre_hook() takes a std::function<void(const c10d::PreHookArgs&)>. pybind11, which converts its
// argument, makes an object that calls Python of a function of Python; but of one that is itself a plain function of
// C++, of the very type, it takes the address (pybind11/functional.h: "stateless"). torch_layout.h declares the type,
// and pybind11 tells types by their names. So what is handed to torch is a function of Python as pybind11 makes it.
//
// A plain function knows nothing but its arguments, so each group has one of its own, of a pool; groups beyond it have
// the hooks of collective_hooks.h, as have all where anything is not as it should be. What is more than a transfer of a
// step that is not sampled takes the GIL, and does what those do.

namespace smon_rt::bindings {

/// For Python: why torch cannot take such functions, as a str, "" if it can. `object` is
/// ProcessGroup.register_pre_hook.
PyObject* why_no_hook_functions(PyObject* module, PyObject* object);
/// For Python: (before, after) for the group of a hook that make_collective_hooks() has made; None: the pool is empty.
PyObject* make_hook_functions(PyObject* module, PyObject* hook);

}  // namespace smon_rt::bindings
