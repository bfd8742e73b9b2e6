// What torch calls before and after each step of an optimizer: functions of C, since a step of Python for each would
// cost several times what it records. What happens seldom is in integrations/torch/steps.py.
//
// Threading: what is remembered is of the thread that steps.

#include "bindings/optimizer_calls.h"

#include <Python.h>

#include <array>
#include <cstddef>
#include <utility>

#include "bindings/forward_state.h"
#include "bindings/hook_state.h"
#include "bindings/python_reference.h"
#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"

namespace smon_rt::bindings {

namespace {

constexpr const char* kWhere = "torch.optim";
/// Optimizers that wrap another, of which more than a few are none.
constexpr std::size_t kMaxDepth = 8;
constexpr std::uint32_t kOptimizers = 1U << SMON_OPTIMIZER;
/// Whoever has one of these open records what goes on otherwise.
constexpr std::uint32_t kOthers = kOptimizers | 1U << SMON_FORWARD_COMPUTE | 1U << SMON_BACKWARD_COMPUTE |
                                  1U << SMON_FORWARD_BACKWARD_COMBINED | 1U << SMON_EVAL;

/// See learn_optimizers() in _runtime.pyi.
struct Learned {
  Callback begin_unless_explicit;
  Callback note;
  HookList on_step;
  Callback tell_step;
  Callback close_step;
};
Learned g_optimizers;

/// Steps of optimizers that this thread is in, one inside the other. Only the outermost has a span.
struct Running {
  std::size_t depth = 0;
  smon_token token = 0;
  std::array<const PyObject*, kMaxDepth> optimizers{};  // identities

  /// Place of the innermost step of that one; kMaxDepth: there is none.
  std::size_t find(const PyObject* optimizer) const {
    for (std::size_t at = depth; at > 0; --at) {
      if (optimizers[at - 1] == optimizer) return at - 1;
    }
    return kMaxDepth;
  }
};
constinit thread_local Running t_running;

/// Optimizers that Python has been told of, which it need not be twice. Weak references, this thread's for ever.
struct Noted {
  std::array<PyObject*, 4> references{};
  std::size_t next = 0;
};
constinit thread_local Noted t_noted;

smon_token begin_span() {
  const smon_span_ids ids = SMON_NO_IDS;
  return smon_begin(SMON_OPTIMIZER, &ids);
}

bool begin(const PyObject* optimizer) {
  Running& running = t_running;
  // Its step before was left by an exception, of which torch does not tell.
  if (running.depth > 0 && running.find(optimizer) != kMaxDepth) abort_optimizer_steps();
  if (running.depth == kMaxDepth) return true;
  running.optimizers[running.depth++] = optimizer;
  if (running.depth > 1) return true;
  if (!begin_unless_explicit()) return false;
  close_forward(0);
  running.token = smon_find_open(kOptimizers) == 0 ? begin_span() : 0;
  return true;
}

/// Tells Python of an optimizer that steps for the first time.
bool note(PyObject* optimizer) {
  Noted& noted = t_noted;
  for (PyObject* reference : noted.references) {
    if (reference != nullptr && is_referent(reference, optimizer)) [[likely]]
      return true;
  }
  if (g_optimizers.note.get() == nullptr) return true;
  Reference reference(PyWeakref_NewRef(optimizer, nullptr));
  if (!reference || !g_optimizers.note(optimizer)) return false;
  Py_XDECREF(std::exchange(noted.references[noted.next], reference.release()));
  noted.next = (noted.next + 1) % noted.references.size();
  return true;
}

/// Calls what Python does. Nothing if it has said nothing.
template <typename... Args>
bool tell(const Callback& callback, Args... args) {
  return callback.get() == nullptr || callback(args...);
}

bool end(PyObject* optimizer) {
  Running& running = t_running;
  const std::size_t at = running.find(optimizer);
  if (at == kMaxDepth) return true;
  running.depth = at;
  if (at > 0) return true;
  smon_end(std::exchange(running.token, 0));
  set(g_hooks.must_look, false);
  if (!note(optimizer)) return false;
  if (!get(g_hooks.is_on)) return true;
  if (g_optimizers.on_step.has_any() && !tell(g_optimizers.tell_step)) return false;
  if (get(g_hooks.is_stepped_by_script) || get(g_hooks.is_stepped_by_framework)) return true;
  return tell(g_optimizers.close_step, optimizer);
}

PyObject* before_optimizer(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!get(g_hooks.is_on) || count < 1) Py_RETURN_NONE;
  if (!begin(args[0]) && !swallow_failure(kWhere)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* after_optimizer(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (t_running.depth == 0 || count < 1) Py_RETURN_NONE;
  if (!end(args[0]) && !swallow_failure(kWhere)) return nullptr;
  Py_RETURN_NONE;
}

template <void (*function)()>
PyObject* without_arguments(PyObject*, PyObject*) {
  function();
  Py_RETURN_NONE;
}

PyObject* learn_optimizers(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("learn_optimizers", count, 5)) return nullptr;
  if (!PyList_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "learn_optimizers() takes two functions, a list of hooks, and two functions");
    return nullptr;
  }
  g_optimizers.begin_unless_explicit.learn(args[0]);
  g_optimizers.note.learn(args[1]);
  g_optimizers.on_step.learn(args[2]);
  g_optimizers.tell_step.learn(args[3]);
  g_optimizers.close_step.learn(args[4]);
  Py_RETURN_NONE;
}

template <typename Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_calls[] = {
    {"learn_optimizers", as_method(&learn_optimizers), METH_FASTCALL, "What Python does then; see the stub."},
    {"before_optimizer", as_method(&before_optimizer), METH_FASTCALL, "torch calls it before any optimizer's step."},
    {"after_optimizer", as_method(&after_optimizer), METH_FASTCALL, "torch calls it after one that returned."},
    {"interrupt_optimizer", &without_arguments<&interrupt_optimizer>, METH_NOARGS, "Something else begins in it."},
    {"go_on_with_optimizer", &without_arguments<&go_on_with_optimizer>, METH_NOARGS, "That has ended."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool begin_unless_explicit() {
  if (get(g_hooks.is_stepped_by_script) || get(g_hooks.is_stepped_by_framework) || get(g_hooks.is_counting_steps)) {
    return true;
  }
  return tell(g_optimizers.begin_unless_explicit);
}

void interrupt_optimizer() {
  if (t_running.depth > 0) smon_end(std::exchange(t_running.token, 0));
}

void go_on_with_optimizer() {
  if (t_running.depth > 0 && smon_find_open(kOthers) == 0) t_running.token = begin_span();
}

void abort_optimizer_steps() {
  if (t_running.depth == 0) return;
  t_running.depth = 0;
  smon_abort(std::exchange(t_running.token, 0));
}

PyMethodDef* optimizer_calls() {
  return g_calls;
}

}  // namespace smon_rt::bindings
