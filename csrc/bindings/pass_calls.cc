// What integrations/torch puts in the place of `torch.autograd.backward` and of a DataLoader's next: in C, since a step
// has several of them. Which span is which: integrations/torch/compute.py, and docs/torch.md.

#include <Python.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "bindings/collective_table.h"
#include "bindings/forward_state.h"
#include "bindings/hook_state.h"
#include "bindings/optimizer_calls.h"
#include "bindings/pipeline_state.h"
#include "bindings/python_reference.h"
#include "bindings/recorded_method.h"
#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"
#include "bindings/thread_state.h"

namespace smon_rt::bindings {

namespace {

/// Whoever has one of these open records what would be recorded here.
constexpr std::uint32_t kComputes = 1U << SMON_FORWARD_COMPUTE | 1U << SMON_BACKWARD_COMPUTE |
                                    1U << SMON_FORWARD_BACKWARD_COMBINED | 1U << SMON_EVAL | 1U << SMON_STARTUP;
constexpr std::uint32_t kWaitsForData = 1U << SMON_DATA_LOADING | 1U << SMON_EVAL;

Callback g_is_compiling;
Callback g_graph_task;

/// Whether torch.compile looks at what runs here: it is to see the plain call. Nothing is raised: then it does not.
bool is_compiling() {
  if (g_is_compiling.get() == nullptr) return false;
  const Reference is = g_is_compiling();
  if (!is) PyErr_Clear();
  return is.get() == Py_True;
}

/// Whether this thread runs a backward pass, on whichever of the engine's threads.
bool is_in_backward() {
  if (g_graph_task.get() == nullptr) return false;
  const Reference task = g_graph_task();
  const long number = task ? PyLong_AsLong(task.get()) : -1;
  PyErr_Clear();
  return number != -1;
}

void backward_ended() {
  count_on(g_hooks.backward_passes);
  set(g_hooks.must_look, true);
}

/// Begins the span of a plain model's backward; 0: someone else records it.
smon_token begin_backward() {
  set(g_hooks.is_end_awaited, false);
  take_backward_end();
  smon_end(std::exchange(t_thread.forward, 0));
  interrupt_optimizer();
  if (smon_find_open(kComputes) != 0) return 0;
  const int microbatch = std::min(get(g_hooks.backwards), std::max(get(g_hooks.forwards) - 1, 0));
  count_on(g_hooks.backwards);
  smon_span_ids ids = SMON_NO_IDS;
  if (microbatch <= std::numeric_limits<std::int16_t>::max()) ids.microbatch = static_cast<std::int16_t>(microbatch);
  ids.chunk = 0;
  const smon_token token = smon_begin(SMON_BACKWARD_COMPUTE, &ids);
  await_backward_end(token);
  return token;
}

PyObject* backward(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  if (!get(g_hooks.is_on)) return call_original(method, args, flagged, kwnames);
  if (enter_stage_backward()) {  // which is recorded: nothing is left to find out
    set(g_hooks.is_end_awaited, false);
    PyObject* result = call_original(method, args, flagged, kwnames);
    if (result == nullptr) return nullptr;
    leave_stage_backward();
    backward_ended();
    return result;
  }
  // One inside another belongs to it: recomputed activations.
  if (is_compiling() || is_in_backward()) return call_original(method, args, flagged, kwnames);
  const smon_token token = begin_backward();
  PyObject* result = call_original(method, args, flagged, kwnames);
  if (result == nullptr) {
    smon_abort(token);
    return nullptr;
  }
  if (token != 0) smon_end_at(token, take_backward_end(), SMON_TIME_HOST, 0);  // else whoever recorded it takes the end
  end_reductions();
  backward_ended();
  go_on_with_optimizer();
  return result;
}

/// A call that finds no batch any more is marked aborted.
PyObject* next_batch(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  if (!get(g_hooks.is_on)) return call_original(method, args, flagged, kwnames);
  close_forward(0);
  interrupt_optimizer();
  const smon_span_ids ids = SMON_NO_IDS;
  const smon_token token = smon_find_open(kWaitsForData) == 0 ? smon_begin(SMON_DATA_LOADING, &ids) : 0;
  PyObject* batch = call_original(method, args, flagged, kwnames);
  if (batch == nullptr) {
    smon_abort(token);
  } else {
    smon_end(token);
  }
  return batch;
}

template <MethodCall call>
PyObject* recorded(PyObject*, PyObject* original) {
  return make_method(call, original);
}

PyObject* learn_passes(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("learn_passes", count, 2)) return nullptr;
  g_is_compiling.learn(args[0]);
  if (args[1] != Py_None) g_graph_task.learn(args[1]);
  Py_RETURN_NONE;
}

PyMethodDef g_calls[] = {
    {"learn_passes", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&learn_passes)), METH_FASTCALL,
     "What is asked of torch; see the stub."},
    {"recorded_backward", &recorded<&backward>, METH_O, "What torch.autograd.backward becomes."},
    {"recorded_next", &recorded<&next_batch>, METH_O, "What the next() of a DataLoader becomes."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

PyMethodDef* pass_calls() {
  return g_calls;
}

}  // namespace smon_rt::bindings
