// raises_later(function): calls it, and raises what comes out of it once the interpreter is back in its loop.
//
// Python drops what a callback of its garbage collector raises. Signals' handlers run as a function of Python is
// entered, so what they raise, as Ctrl-C or SIGTERM's sys.exit(), would be dropped by whoever has such a callback.

#include <Python.h>

#include "bindings/python_reference.h"
#include "bindings/runtime_calls.h"

namespace smon_rt::bindings {
namespace {

// A pending call: the main thread makes it between two instructions of Python. Owns the error.
int raise_now(void* owned_error) {
  const Reference error(static_cast<PyObject*>(owned_error));
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error.get())), error.get());
  return -1;
}

PyObject* call(PyObject* function, PyObject* const* arguments, Py_ssize_t count) {
  PyObject* result = PyObject_Vectorcall(function, arguments, static_cast<std::size_t>(count), nullptr);
  if (result != nullptr) return result;
  PyObject* error = take_error().release();
  if (Py_AddPendingCall(&raise_now, error) != 0) Py_XDECREF(error);  // too many wait already: dropped, as it was
  Py_RETURN_NONE;
}

PyObject* raises_later(PyObject* /*module*/, PyObject* function) {
  static PyMethodDef definition = {"raises_later", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&call)),
                                   METH_FASTCALL, nullptr};
  return PyCFunction_New(&definition, function);
}

PyMethodDef g_calls[] = {{"raises_later", &raises_later, METH_O, nullptr}, {nullptr, nullptr, 0, nullptr}};

}  // namespace

PyMethodDef* late_error_calls() {
  return g_calls;
}

}  // namespace smon_rt::bindings
