#pragma once

#include <Python.h>

#include <array>
#include <cstddef>

#include "api/smon_rt.h"
#include "bindings/recorded_method.h"

// What is remembered of the schedule of a pipeline that runs on a thread: schedule_calls.cc sets it, and methods of
// stages (pipeline_calls.cc) look at it.

namespace smon_rt::bindings {

/// What a stage says of itself, asked once, since its schedule keeps it.
struct Stage {
  PyObject* object = nullptr;
  long chunk = -1;  // and the others: not asked yet
  int is_last = -1;
  int has_backward = -1;
};

/// The schedule that this thread ran last, of which all of this holds as long as it lives.
struct KnownSchedule {
  PyObject* reference = nullptr;  // weak, owned; nullptr: none is known
  int recording = 0;              // in which Python has been told of it
  bool is_loop = true;            // stages go round the ranks (0 1 0 1), and not to and fro (0 1 1 0)
  bool has_loss = false;          // it computes the loss itself, right after the last stage's forward
  int microbatch_offset = 0;      // of further calls in the same step, whose microbatches are further ones
  long long step = -1;            // how many steps had ended at its last call
  std::array<Stage, 4> stages{};
};

/// Its run, if one is under way.
struct ScheduleRun {
  bool is_running = false;
  bool is_eval = false;
  bool is_loop = true;
  bool has_loss = false;
  int microbatch_offset = 0;
  smon_token forward_with_loss = 0;  // the last stage's forward, which ends with its loss
};

struct PipelineState {
  ScheduleRun run;
  KnownSchedule known;
};
inline constinit thread_local PipelineState t_pipeline;

/// A schedule's step, and what it does before its first one: methods as pipeline_calls.cc makes them.
PyObject* schedule_step(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames);
PyObject* schedule_startup(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames);
bool set_up_schedules();

/// See learn_schedules() in _runtime.pyi.
PyObject* learn_schedules(PyObject* module, PyObject* const* args, Py_ssize_t count);

/// Whether the autograd engine, which begins now, runs for a stage's backward that is recorded on this thread.
bool enter_stage_backward();
/// It has returned: what the reducer issued is done.
void leave_stage_backward();

}  // namespace smon_rt::bindings
