// Methods that a training step calls dozens of times: one of Python would cost several times what it records.

#include "bindings/recorded_method.h"

#include <Python.h>
#include <structmember.h>

#include <cstddef>

namespace smon_rt::bindings {

namespace {

[[gnu::hot]] PyObject* call_method(PyObject* callable, PyObject* const* args, std::size_t count_and_flag,
                                   PyObject* kwnames) {
  const auto& method = *reinterpret_cast<const RecordedMethod*>(callable);
  return method.call(method, args, count_and_flag, kwnames);
}

PyObject* bind_method(PyObject* callable, PyObject* self, PyObject*) {
  if (self != nullptr && self != Py_None) return PyMethod_New(callable, self);
  Py_INCREF(callable);
  return callable;
}

int traverse_method(PyObject* object, visitproc visit, void* arg) {
  auto* method = reinterpret_cast<RecordedMethod*>(object);
  Py_VISIT(Py_TYPE(object));
  Py_VISIT(method->original);
  Py_VISIT(method->dict);
  return 0;
}

int clear_method(PyObject* object) {
  auto* method = reinterpret_cast<RecordedMethod*>(object);
  Py_CLEAR(method->dict);
  return 0;
}

void delete_method(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  PyObject_GC_UnTrack(object);
  clear_method(object);
  Py_CLEAR(reinterpret_cast<RecordedMethod*>(object)->original);
  PyObject_GC_Del(object);
  Py_DECREF(type);
}

PyMemberDef g_method_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(RecordedMethod, vectorcall), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(RecordedMethod, dict), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef g_method_properties[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot g_method_slots[] = {
    {Py_tp_call, reinterpret_cast<void*>(&PyVectorcall_Call)},
    {Py_tp_descr_get, reinterpret_cast<void*>(&bind_method)},
    {Py_tp_traverse, reinterpret_cast<void*>(&traverse_method)},
    {Py_tp_clear, reinterpret_cast<void*>(&clear_method)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&delete_method)},
    {Py_tp_members, g_method_members},
    {Py_tp_getset, g_method_properties},
    {0, nullptr},
};

PyType_Spec g_method_spec = {
    "smon_rt._runtime.recorded_method",
    static_cast<int>(sizeof(RecordedMethod)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_HAVE_VECTORCALL |
        Py_TPFLAGS_METHOD_DESCRIPTOR,
    g_method_slots,
};
PyTypeObject* g_method_type = nullptr;

}  // namespace

PyObject* make_method(MethodCall call, PyObject* original, int kind) {
  auto* method = PyObject_GC_New(RecordedMethod, g_method_type);
  if (method == nullptr) return nullptr;
  method->vectorcall = call_method;
  method->call = call;
  // What pybind11 puts into a class takes its arguments as a tuple; the function in it takes them as they come.
  if (PyInstanceMethod_Check(original)) original = PyInstanceMethod_GET_FUNCTION(original);
  Py_INCREF(original);
  method->original = original;
  method->kind = kind;
  method->dict = nullptr;
  PyObject_GC_Track(reinterpret_cast<PyObject*>(method));
  return reinterpret_cast<PyObject*>(method);
}

bool set_up_methods(PyObject* module) {
  g_method_type = reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &g_method_spec, nullptr));
  return g_method_type != nullptr;
}

}  // namespace smon_rt::bindings
