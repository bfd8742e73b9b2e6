// What `Work.wait` becomes: a method of C, since it is called for each collective.

#include "bindings/recorded_wait.h"

#include <Python.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>

#include "bindings/collective_table.h"

namespace smon_rt::bindings {

namespace {

/// A method that ends the span of the work whose wait returns.
struct RecordedWait {
  PyObject_HEAD vectorcallfunc call;
  PyObject* original;
  PyObject* dict;
};

PyObject* wait_for_work(PyObject* callable, PyObject* const* args, std::size_t count_and_flag, PyObject* kwnames) {
  PyObject* original = reinterpret_cast<RecordedWait*>(callable)->original;
  const bool has_work = PyVectorcall_NARGS(count_and_flag) > 0;
  const smon_token token = has_work ? take_awaited(reinterpret_cast<std::uintptr_t>(args[0])) : 0;
  PyObject* result = PyObject_Vectorcall(original, args, count_and_flag, kwnames);
  if (token == 0) return result;
  if (result != nullptr) {
    end_operation(token, SMON_TIME_WAIT_RETURN, 0);
  } else {
    abort_operation(token);
  }
  return result;
}

PyObject* bind_wait(PyObject* callable, PyObject* work, PyObject*) {
  if (work != nullptr && work != Py_None) return PyMethod_New(callable, work);
  Py_INCREF(callable);
  return callable;
}

int traverse_wait(PyObject* object, visitproc visit, void* arg) {
  auto* wait = reinterpret_cast<RecordedWait*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(wait->original);
  Py_VISIT(wait->dict);
  return 0;
}

int clear_wait(PyObject* object) {
  auto* wait = reinterpret_cast<RecordedWait*>(object);
  Py_CLEAR(wait->dict);
  return 0;
}

void delete_wait(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear_wait(object);
  Py_CLEAR(reinterpret_cast<RecordedWait*>(object)->original);
  PyObject_GC_Del(object);
  Py_DECREF(type);
}

PyMemberDef g_wait_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RecordedWait, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(RecordedWait, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef g_wait_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot g_wait_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(&bind_wait)},
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse_wait)},
    {Py_tp_clear, reinterpret_cast<void*>(&clear_wait)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&delete_wait)},
    {Py_tp_members, g_wait_members},
    {Py_tp_getset, g_wait_properties},
    {0, nullptr},
};

PyType_Spec g_wait_spec = {
    "smon_rt._runtime.recorded_wait",
    static_cast<int>(sizeof(RecordedWait)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR,
    g_wait_slots,
};
PyTypeObject* g_wait_type = nullptr;

}  // namespace

PyObject* recorded_wait(PyObject*, PyObject* original) {
  auto* wait = PyObject_GC_New(RecordedWait, g_wait_type);
  if (wait == nullptr) return nullptr;
  wait->call = wait_for_work;
  Py_INCREF(original);
  wait->original = original;
  wait->dict = nullptr;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(wait));
  return reinterpret_cast<PyObject*>(wait);
}

bool set_up_wait(PyObject* module) {
  g_wait_type = reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &g_wait_spec, nullptr));
  return g_wait_type != nullptr;
}

}  // namespace smon_rt::bindings
