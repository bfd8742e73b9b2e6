// Steps: smon_rt.step, a context manager of C, and what goes with a step whoever says it. Nothing of Python runs in one
// for which no integration has asked for that.

#include "bindings/step_calls.h"

#include <Python.h>

#include <cstddef>

#include "bindings/collective_table.h"
#include "bindings/forward_state.h"
#include "bindings/hook_state.h"
#include "bindings/last_work.h"
#include "bindings/optimizer_calls.h"
#include "bindings/python_reference.h"
#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"

namespace smon_rt::bindings {

namespace {

constexpr const char* kWhere = "step_begun";
constexpr std::uint16_t kForwardOnly = 1U << 2;  // of span_flag in format/span.h

/// See learn_steps() in _runtime.pyi.
struct Learned {
  Callback prepare;
  HookList on_begun;
  Callback tell_begun;
  HookList on_end;
  Callback tell_end;
};
Learned g_steps;

/// Calls what Python does of a step; nothing if that has said nothing.
template <typename... Args>
bool tell(const Callback& callback, Args... args) {
  return callback.get() == nullptr || callback(args...);
}

/// The number that a script gave. False, with no exception set: it gave none, or nothing that is a number.
bool read_step(PyObject* object, long long& step) {
  if (object == Py_None) return false;
  const Reference number(PyNumber_Index(object));
  int overflow = 0;
  step = number ? PyLong_AsLongLongAndOverflow(number.get(), &overflow) : 0;
  PyErr_Clear();
  return number && overflow == 0;
}

struct StepObject {
  PyObject_HEAD PyObject* number;  // as the script gave it; owned
};

PyObject* number_of(PyObject* step) {
  return reinterpret_cast<StepObject*>(step)->number;
}

PyObject* new_step(PyObject* type, PyObject* const* args, std::size_t count_and_flag, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(count_and_flag);
  const Py_ssize_t keywords = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  if (count + keywords > 1 ||
      (keywords == 1 && PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, 0), "k") != 0)) {
    PyErr_SetString(PyExc_TypeError, "step() takes the step's number k, or nothing");
    return nullptr;
  }
  auto* self = PyObject_New(StepObject, reinterpret_cast<PyTypeObject*>(type));
  if (self == nullptr) return nullptr;
  self->number = count + keywords == 1 ? args[0] : Py_None;
  Py_INCREF(self->number);
  return reinterpret_cast<PyObject*>(self);
}

void delete_step(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  Py_DECREF(number_of(object));
  PyObject_Free(object);
  Py_DECREF(type);
}

PyObject* enter(PyObject* object, PyObject*) {
  if (get(g_hooks.must_discover) || !get(g_hooks.is_stepped_by_script)) [[unlikely]] {
    set(g_hooks.is_stepped_by_script, true);
    if (!tell(g_steps.prepare)) return nullptr;
  }
  PyObject* number = number_of(object);
  if (!begin_step(number) || !step_begun(number)) return nullptr;
  Py_INCREF(object);
  return object;
}

PyObject* exit(PyObject*, PyObject* const*, Py_ssize_t) {
  if (!end_step()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* step_begun_call(PyObject*, PyObject* number) {
  if (!step_begun(number)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* end_step_call(PyObject*, PyObject*) {
  if (!end_step()) return nullptr;
  Py_RETURN_NONE;
}

PyObject* learn_steps(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("learn_steps", count, 5)) return nullptr;
  if (!PyList_Check(args[1]) || !PyList_Check(args[3])) {
    PyErr_SetString(PyExc_TypeError, "learn_steps() takes two lists of hooks, and three functions");
    return nullptr;
  }
  g_steps.prepare.learn(args[0]);
  g_steps.on_begun.learn(args[1]);
  g_steps.tell_begun.learn(args[2]);
  g_steps.on_end.learn(args[3]);
  g_steps.tell_end.learn(args[4]);
  Py_RETURN_NONE;
}

PyMethodDef g_calls[] = {
    {"learn_steps", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&learn_steps)), METH_FASTCALL,
     "What Python does at steps; see the stub."},
    {"step_begun", &step_begun_call, METH_O, "Tells whoever acts by the step's number."},
    {"end_step", &end_step_call, METH_NOARGS, "The step ends, and what hooks still hold of it."},
    {nullptr, nullptr, 0, nullptr},
};

PyMethodDef g_step_methods[] = {
    {"__enter__", &enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&exit)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

constexpr const char* kStepDoc =
    "step(k=None)\n--\n\n"
    "The step that spans belong to from here on; without a number it is counted.\n\n"
    "Every step's wall time is recorded, and, where the step is sampled, its spans.\n\n"
    "Example:\n"
    "    >>> import smon_rt\n"
    "    >>> for k in range(3):\n"
    "    ...     with smon_rt.step(k), smon_rt.span(\"forward_compute\", microbatch=0):\n"
    "    ...         pass\n";

PyType_Slot g_step_slots[] = {
    {Py_tp_doc, const_cast<char*>(kStepDoc)},
    {Py_tp_dealloc, reinterpret_cast<void*>(&delete_step)},
    {Py_tp_methods, g_step_methods},
    {0, nullptr},
};

PyType_Spec g_step_spec = {
    "smon_rt._runtime.step",
    static_cast<int>(sizeof(StepObject)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    g_step_slots,
};

}  // namespace

bool step_begun(PyObject* number) {
  long long step;
  if (!read_step(number, step)) step = get(g_hooks.step) + 1;
  set(g_hooks.step, step);
  if (!g_steps.on_begun.has_any()) [[likely]]
    return true;
  const Reference told(PyLong_FromLongLong(step));
  if (!told) return swallow_failure(kWhere);
  // One alone, as a plan's, needs nothing of Python around it.
  const Reference hook = g_steps.on_begun.only();
  if (!hook) return tell(g_steps.tell_begun, told.get());
  return static_cast<bool>(Reference(PyObject_CallOneArg(hook.get(), told.get()))) || swallow_failure(kWhere);
}

bool end_step() {
  smon_step_end();
  count_on(g_hooks.ended_steps);
  close_forward(kForwardOnly);
  abort_optimizer_steps();
  end_unwaited();
  keep_last_work(nullptr);
  const bool is_model_unseen = get(g_hooks.backwards) > 0 && get(g_hooks.models) == 0;
  bool is_told = true;
  if (g_steps.on_end.has_any() || get(g_hooks.is_looking_for_models) || is_model_unseen) [[unlikely]]
    is_told = tell(g_steps.tell_end);
  set(g_hooks.models, 0);
  set(g_hooks.forwards, 0);
  set(g_hooks.backwards, 0);
  return is_told;
}

PyMethodDef* step_calls() {
  return g_calls;
}

PyObject* make_step_type(PyObject* module) {
  PyObject* type = PyType_FromModuleAndSpec(module, &g_step_spec, nullptr);
  // The only constructor; there is no slot for it before Python 3.14.
  if (type != nullptr) reinterpret_cast<PyTypeObject*>(type)->tp_vectorcall = new_step;
  return type;
}

}  // namespace smon_rt::bindings
