// What integrations/pipelining.py puts in the place of a schedule's step. Nothing of Python runs in one whose schedule
// is known: the processor has forgotten most of the interpreter by then.

#include <Python.h>

#include <utility>
#include <vector>

#include "bindings/hook_state.h"
#include "bindings/optimizer_calls.h"
#include "bindings/pipeline_state.h"
#include "bindings/python_reference.h"
#include "bindings/runtime_arguments.h"
#include "bindings/transfer_labels.h"

namespace smon_rt::bindings {

namespace {

constexpr const char* kWhere = "pipelining";

struct Learned {
  Callback say_layout;  // (schedule) → whether its stages go round the ranks
  Callback run_eval;    // (original, *args, **kwargs), and the next
  Callback run_startup;
};
Learned g_schedules;

struct ScheduleNames {
  PyObject* has_backward;
  PyObject* microbatches;
  PyObject* loss;
  PyObject* functions;
};
ScheduleNames g_names;

/// Whether the schedule's own code runs, which computes the loss next; the job's functions may do as they like.
bool does_loss_follow(PyObject* schedule) {
  const Reference loss = optional_attribute(schedule, g_names.loss);
  if (!loss || loss.get() == Py_None) return false;
  const Reference functions = optional_attribute(schedule, g_names.functions);
  const int has_functions = functions ? PyObject_IsTrue(functions.get()) : 0;
  if (has_functions < 0) PyErr_Clear();
  return has_functions == 0;
}

bool is_known(PyObject* schedule) {
  const KnownSchedule& known = t_pipeline.known;
  return known.reference != nullptr && known.recording == get(g_hooks.recording) &&
         is_referent(known.reference, schedule);
}

/// Has Python say what is constant of it. False: an exception is set.
bool learn(PyObject* schedule) {
  KnownSchedule& known = t_pipeline.known;
  Reference reference(PyWeakref_NewRef(schedule, nullptr));
  if (!reference) return false;
  Py_XDECREF(std::exchange(known.reference, reference.release()));
  known.recording = get(g_hooks.recording);
  known.stages = {};
  known.is_loop = true;
  known.has_loss = does_loss_follow(schedule);
  const Reference is_loop = g_schedules.say_layout(schedule);
  known.is_loop = is_loop.get() == Py_True;
  return static_cast<bool>(is_loop);
}

/// Further calls in the same step are further microbatches. False: an exception is set.
bool count_microbatches(PyObject* schedule) {
  KnownSchedule& known = t_pipeline.known;
  const long long step = get(g_hooks.ended_steps);
  if (std::exchange(known.step, step) != step) {
    known.microbatch_offset = 0;
    return true;
  }
  const Reference count(PyObject_GetAttr(schedule, g_names.microbatches));
  const long microbatches = count ? PyLong_AsLong(count.get()) : -1;
  if (microbatches == -1 && PyErr_Occurred() != nullptr) return false;
  known.microbatch_offset += static_cast<int>(microbatches);
  return true;
}

/// False: an exception is set.
bool begin_training() {
  if (!begin_unless_explicit()) return false;
  interrupt_optimizer();
  count_on(g_hooks.models);  // they are recorded here: none need be looked for
  return true;
}

/// The run begins, and what goes wrong then has no part of it fail. False: an exception is set, for the job.
bool enter(PyObject* schedule) {
  ScheduleRun& run = t_pipeline.run;
  smon_abort(std::exchange(run, ScheduleRun{}).forward_with_loss);  // of a run whose end nobody saw
  run.is_running = true;
  const Reference has_backward = optional_attribute(schedule, g_names.has_backward);
  run.is_eval = has_backward.get() == Py_False;
  const bool is_begun = run.is_eval || (begin_training() && count_microbatches(schedule));
  if (!is_begun && !swallow_failure(kWhere)) return false;
  if (!is_known(schedule) && !learn(schedule) && !swallow_failure(kWhere)) return false;
  const KnownSchedule& known = t_pipeline.known;
  run.is_loop = known.is_loop;
  run.has_loss = known.has_loss;
  run.microbatch_offset = run.is_eval ? 0 : known.microbatch_offset;
  return true;
}

void leave() {
  smon_abort(std::exchange(t_pipeline.run, ScheduleRun{}).forward_with_loss);
  clear_transfers();
}

/// Has Python call the original, as function(original, *args, **kwargs).
PyObject* call_in_python(const Callback& function, const RecordedMethod& method, PyObject* const* args,
                         std::size_t flagged, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  const Py_ssize_t keywords = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  std::vector<PyObject*> all;
  all.reserve(static_cast<std::size_t>(1 + count + keywords));
  all.push_back(method.original);
  all.insert(all.end(), args, args + count + keywords);
  return PyObject_Vectorcall(function.get(), all.data(), static_cast<std::size_t>(1 + count), kwnames);
}

}  // namespace

PyObject* schedule_step(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  // One inside another: of a class that calls another's step.
  if (PyVectorcall_NARGS(flagged) == 0 || t_pipeline.run.is_running) {
    return call_original(method, args, flagged, kwnames);
  }
  if (!enter(args[0])) {
    leave();
    return nullptr;
  }
  PyObject* result = t_pipeline.run.is_eval ? call_in_python(g_schedules.run_eval, method, args, flagged, kwnames)
                                            : call_original(method, args, flagged, kwnames);
  leave();
  return result;
}

PyObject* schedule_startup(const RecordedMethod& method, PyObject* const* args, std::size_t flagged,
                           PyObject* kwnames) {
  // (self, stages, args, kwargs, target, fwd_initialized, bwd_initialized)
  bool is_done = t_pipeline.run.is_eval;
  if (!is_done && PyVectorcall_NARGS(flagged) > 6 && args[5] == Py_True) {
    const Reference has_backward = optional_attribute(args[0], g_names.has_backward);
    is_done = has_backward.get() == args[6];
  }
  if (is_done) return call_original(method, args, flagged, kwnames);
  return call_in_python(g_schedules.run_startup, method, args, flagged, kwnames);
}

PyObject* learn_schedules(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("learn_schedules", count, 3)) return nullptr;
  g_schedules.say_layout.learn(args[0]);
  g_schedules.run_eval.learn(args[1]);
  g_schedules.run_startup.learn(args[2]);
  Py_RETURN_NONE;
}

bool set_up_schedules() {
  const std::pair<PyObject**, const char*> names[] = {
      {&g_names.has_backward, "_has_backward"},
      {&g_names.microbatches, "_n_microbatches"},
      {&g_names.loss, "_loss_fn"},
      {&g_names.functions, "_comp_type_to_function_map"},
  };
  for (const auto& [name, text] : names) {
    *name = PyUnicode_InternFromString(text);
    if (*name == nullptr) return false;
  }
  return true;
}

}  // namespace smon_rt::bindings
