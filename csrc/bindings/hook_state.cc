#include "bindings/hook_state.h"

#include <cstdint>

#include "bindings/runtime_calls.h"

namespace smon_rt::bindings {

namespace {

Callback g_failed;

/// A value of g_hooks, as the closure of the property that Python sees it by.
template <typename Value>
void* place_of(std::atomic<Value>& value) {
  return static_cast<void*>(&value);
}

PyObject* get_bool(PyObject*, void* place) {
  return PyBool_FromLong(get(*static_cast<std::atomic<bool>*>(place)) ? 1 : 0);
}

bool may_set(PyObject* value) {
  if (value == nullptr) PyErr_SetString(PyExc_TypeError, "what hooks look at cannot be deleted");
  return value != nullptr;
}

int set_bool(PyObject*, PyObject* value, void* place) {
  const int is_true = may_set(value) ? PyObject_IsTrue(value) : -1;
  if (is_true < 0) return -1;
  set(*static_cast<std::atomic<bool>*>(place), is_true != 0);
  return 0;
}

template <typename Value>
PyObject* get_int(PyObject*, void* place) {
  return PyLong_FromLongLong(get(*static_cast<std::atomic<Value>*>(place)));
}

template <typename Value>
int set_int(PyObject*, PyObject* value, void* place) {
  const long long number = may_set(value) ? PyLong_AsLongLong(value) : -1;
  if (number == -1 && PyErr_Occurred() != nullptr) return -1;
  set(*static_cast<std::atomic<Value>*>(place), number);
  return 0;
}

PyGetSetDef bool_property(const char* name, std::atomic<bool>& value) {
  return {name, &get_bool, &set_bool, nullptr, place_of(value)};
}
template <typename Value>
PyGetSetDef int_property(const char* name, std::atomic<Value>& value) {
  return {name, &get_int<Value>, &set_int<Value>, nullptr, place_of(value)};
}

PyGetSetDef g_properties[] = {
    bool_property("is_on", g_hooks.is_on),
    bool_property("is_stepped_by_script", g_hooks.is_stepped_by_script),
    bool_property("is_stepped_by_framework", g_hooks.is_stepped_by_framework),
    bool_property("is_counting_steps", g_hooks.is_counting_steps),
    bool_property("must_discover", g_hooks.must_discover),
    bool_property("is_looking_for_models", g_hooks.is_looking_for_models),
    bool_property("is_end_awaited", g_hooks.is_end_awaited),
    bool_property("must_look", g_hooks.must_look),
    int_property("recording", g_hooks.recording),
    int_property("models", g_hooks.models),
    int_property("forwards", g_hooks.forwards),
    int_property("backwards", g_hooks.backwards),
    int_property("step", g_hooks.step),
    int_property("ended_steps", g_hooks.ended_steps),
    int_property("backward_passes", g_hooks.backward_passes),
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot g_slots[] = {
    {Py_tp_doc, const_cast<char*>("What the hooks of all integrations look at: see the stub.")},
    {Py_tp_getset, g_properties},
    {0, nullptr},
};

PyType_Spec g_spec = {"smon_rt._runtime.HookState", static_cast<int>(sizeof(PyObject)), 0,
                      Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION, g_slots};

PyObject* learn_failed(PyObject*, PyObject* function) {
  g_failed.learn(function);
  Py_RETURN_NONE;
}

PyMethodDef g_calls[] = {
    {"learn_failed", &learn_failed, METH_O, "Who is told what a hook raised."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

[[gnu::cold]] bool swallow_failure(const char* where) {
  if (PyErr_Occurred() == nullptr) return true;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;  // the user's interrupt
  const Reference error = take_error();
  const Reference name(PyUnicode_FromString(where));
  if (!error || !name || !g_failed(name.get(), error.get())) PyErr_Clear();
  return true;
}

PyObject* make_hook_state(PyObject* module) {
  const Reference type(PyType_FromModuleAndSpec(module, &g_spec, nullptr));
  return type ? PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type.get()), 0) : nullptr;
}

PyMethodDef* hook_state_calls() {
  return g_calls;
}

}  // namespace smon_rt::bindings
