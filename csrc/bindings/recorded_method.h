#pragma once

#include <Python.h>

#include <cstddef>

namespace smon_rt::bindings {

struct RecordedMethod;
/// Calls `method.original`, and records what it does. Arguments as CPython hands them over (vectorcall).
using MethodCall = PyObject* (*)(const RecordedMethod& method, PyObject* const* args, std::size_t count_and_flag,
                                 PyObject* kwnames);

/// A method of a foreign class, as we replace it: a descriptor like a function of Python, but of C.
struct RecordedMethod {
  PyObject_HEAD vectorcallfunc vectorcall;
  MethodCall call;
  PyObject* original;  // owned
  int kind;            // for `call`
  PyObject* dict;      // owned: __name__, __doc__, __wrapped__ and the like
};

/// A new reference, nullptr with an exception set.
PyObject* make_method(MethodCall call, PyObject* original, int kind = 0);
/// Makes the type. False: an exception is set.
bool set_up_methods(PyObject* module);

/// Its call in the original's stead.
inline PyObject* call_original(const RecordedMethod& method, PyObject* const* args, std::size_t count_and_flag,
                               PyObject* kwnames) {
  return PyObject_Vectorcall(method.original, args, count_and_flag, kwnames);
}

}  // namespace smon_rt::bindings
