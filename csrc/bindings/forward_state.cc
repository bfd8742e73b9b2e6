// What integrations/torch/compute.py remembers of each thread. Here, because each collective looks at it.

#include "bindings/forward_state.h"

#include <Python.h>

#include <atomic>
#include <utility>

#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"
#include "bindings/thread_state.h"

namespace smon_rt::bindings {

namespace {

PyObject* set_forward(PyObject*, PyObject* object) {
  smon_token token;
  if (!parse_token("set_forward", object, token)) return nullptr;
  t_thread.forward = token;
  Py_RETURN_NONE;
}

PyObject* forward(PyObject*, PyObject*) {
  return PyLong_FromUnsignedLongLong(t_thread.forward);
}

PyObject* end_forward(PyObject*, PyObject*) {
  smon_end(std::exchange(t_thread.forward, 0));
  Py_RETURN_NONE;
}

PyObject* forward_returned(PyObject*, PyObject*) {
  t_thread.forward_end_ticks = smon_mark_end(t_thread.forward);
  Py_RETURN_NONE;
}

PyObject* set_inside_model_call(PyObject*, PyObject* object) {
  set_inside_model(object == Py_True);
  Py_RETURN_NONE;
}

PyObject* is_inside_model(PyObject*, PyObject*) {
  return PyBool_FromLong(t_thread.is_inside_model ? 1 : 0);
}

PyObject* close_forward_call(PyObject*, PyObject* object) {
  const long flags = PyLong_AsLong(object);
  if (flags == -1 && PyErr_Occurred() != nullptr) return nullptr;
  close_forward(static_cast<std::uint16_t>(flags));
  Py_RETURN_NONE;
}

// When the autograd engine had computed all: ticks, 0 if nobody has noticed. Of the process, as the engine's threads
// are.
std::atomic<std::int64_t> g_backward_end{0};
std::atomic<smon_token> g_backward{0};

PyObject* backward_computed(PyObject*, PyObject*) {
  g_backward_end.store(smon_mark_end(g_backward.load(std::memory_order_relaxed)), std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyObject* await_backward_end_call(PyObject*, PyObject* object) {
  smon_token token;
  if (!parse_token("await_backward_end", object, token)) return nullptr;
  await_backward_end(token);
  Py_RETURN_NONE;
}

PyObject* take_backward_end_call(PyObject*, PyObject*) {
  return PyLong_FromLongLong(take_backward_end());
}

PyMethodDef g_calls[] = {
    {"backward_computed", &backward_computed, METH_NOARGS, "The autograd engine has computed all."},
    {"await_backward_end", &await_backward_end_call, METH_O, "Token of the backward that does so, from here on."},
    {"take_backward_end", &take_backward_end_call, METH_NOARGS, "When that was, once; 0: not known."},
    {"set_forward", &set_forward, METH_O, "Token of the forward that awaits its backward on this thread; 0: none."},
    {"forward", &forward, METH_NOARGS, "That token."},
    {"end_forward", &end_forward, METH_NOARGS, "Ends it now."},
    {"forward_returned", &forward_returned, METH_NOARGS, "Its module has returned."},
    {"set_inside_model", &set_inside_model_call, METH_O, "Whether a model's call runs on this thread."},
    {"is_inside_model", &is_inside_model, METH_NOARGS, "Whether one does."},
    {"close_forward", &close_forward_call, METH_O, "Ends it where its module returned, with these flags."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

[[gnu::hot]] void close_forward(std::uint16_t flags) {
  if (t_thread.forward == 0 || t_thread.is_inside_model) return;
  smon_end_at(std::exchange(t_thread.forward, 0), t_thread.forward_end_ticks, SMON_TIME_HOST, flags);
}

bool set_inside_model(bool is_inside) {
  return std::exchange(t_thread.is_inside_model, is_inside);
}

void await_backward_end(smon_token token) {
  g_backward_end.store(0, std::memory_order_relaxed);
  g_backward.store(token, std::memory_order_relaxed);
}

std::int64_t take_backward_end() {
  g_backward.store(0, std::memory_order_relaxed);
  return g_backward_end.exchange(0, std::memory_order_relaxed);
}

PyMethodDef* forward_calls() {
  return g_calls;
}

}  // namespace smon_rt::bindings
