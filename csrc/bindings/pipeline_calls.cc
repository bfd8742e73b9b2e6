// What integrations/pipelining.py puts in the place of methods that a schedule calls for each microbatch.
//
// Threading: what is remembered is of the thread that runs the schedule.

#include <Python.h>

#include <array>
#include <cstdint>
#include <utility>

#include "bindings/collective_table.h"
#include "bindings/forward_state.h"
#include "bindings/pipeline_state.h"
#include "bindings/python_reference.h"
#include "bindings/recorded_method.h"
#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"
#include "bindings/torch_layout.h"
#include "bindings/transfer_labels.h"

namespace smon_rt::bindings {

namespace {

/// The backward of a stage that runs on this thread, recorded, and whether the engine runs for it.
struct StageBackward {
  bool is_running = false;
  bool is_engine_running = false;
};
constinit thread_local StageBackward t_backward;

struct StageNames {
  PyObject* stage_index;
  PyObject* group_size;
  PyObject* is_last;
  PyObject* has_backward;
  PyObject* full_backward;
  PyObject* tensor;
  PyObject* microbatch[2];
  PyObject* input_name;
  PyObject* weight_name;
};
StageNames g_names;

struct Ids {
  std::int16_t microbatch = -1;
  std::int16_t chunk = -1;
};

/// An argument by its place or its name; borrowed, nullptr if it is not given.
PyObject* argument(PyObject* const* args, Py_ssize_t count, PyObject* kwnames, Py_ssize_t place, PyObject* name) {
  if (place < count) return args[place];
  const Py_ssize_t keywords = kwnames == nullptr ? 0 : PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < keywords; ++i) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    if (keyword == name || PyUnicode_Compare(keyword, name) == 0) return args[count + i];
  }
  return nullptr;
}

bool read_int(PyObject* object, long& value) {
  value = object == nullptr ? -1 : PyLong_AsLong(object);
  return object != nullptr && !(value == -1 && PyErr_Occurred() != nullptr);
}

/// nullptr: not remembered.
Stage* find_stage(PyObject* object) {
  if (!t_pipeline.run.is_running || t_pipeline.run.is_eval) return nullptr;
  for (Stage& stage : t_pipeline.known.stages) {
    if (stage.object == nullptr) stage.object = object;
    if (stage.object == object) return &stage;
  }
  return nullptr;
}

/// The place of a stage among those of this rank. False: it says none, and an exception may be set.
bool find_chunk(PyObject* object, long& chunk) {
  Stage* known = find_stage(object);
  if (known != nullptr && known->chunk >= 0) {
    chunk = known->chunk;
    return true;
  }
  long stage, size;
  const Reference stage_index(PyObject_GetAttr(object, g_names.stage_index));
  const Reference group_size(stage_index ? PyObject_GetAttr(object, g_names.group_size) : nullptr);
  if (!read_int(stage_index.get(), stage) || !read_int(group_size.get(), size) || size <= 0) return false;
  chunk = stage / size;
  if (known != nullptr) known->chunk = chunk;
  return true;
}

/// Microbatch and chunk of a call of a stage's method, whose first argument is the microbatch; none if it says neither.
Ids ids_of(PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  Ids ids;
  if (count == 0) return ids;
  PyObject* given = argument(args, count, kwnames, 1, g_names.microbatch[0]);
  if (given == nullptr) given = argument(args, count, kwnames, 1, g_names.microbatch[1]);
  long microbatch, chunk;
  if (read_int(given, microbatch) && find_chunk(args[0], chunk)) {
    ids.microbatch = static_cast<std::int16_t>(microbatch + t_pipeline.run.microbatch_offset);
    ids.chunk = static_cast<std::int16_t>(chunk);
  }
  PyErr_Clear();
  return ids;
}

/// Whether an attribute of a stage, most often a property, is true; `missing` if it is not there.
bool is_true(PyObject* object, int Stage::* what, PyObject* name, bool missing) {
  Stage* known = find_stage(object);
  if (known != nullptr && known->*what >= 0) return known->*what != 0;
  const Reference value(PyObject_GetAttr(object, name));
  int is = value ? PyObject_IsTrue(value.get()) : -1;
  if (is < 0) {
    PyErr_Clear();
    is = missing ? 1 : 0;
  }
  if (known != nullptr) known->*what = is;
  return is != 0;
}

smon_token begin(int kind, const Ids& of_call, PyObject* name) {
  smon_span_ids ids = SMON_NO_IDS;
  ids.microbatch = of_call.microbatch;
  ids.chunk = of_call.chunk;
  if (name != nullptr) ids.name_id = name_id(name);
  return smon_begin(static_cast<smon_kind>(kind), &ids);
}

PyObject* forward(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  if (t_pipeline.run.is_eval || count == 0) return call_original(method, args, flagged, kwnames);
  const smon_token token = begin(SMON_FORWARD_COMPUTE, ids_of(args, count, kwnames), nullptr);
  // Models that it calls are this forward, and need not find that out themselves.
  const bool was_inside = set_inside_model(true);
  PyObject* output = call_original(method, args, flagged, kwnames);
  set_inside_model(was_inside);
  if (output == nullptr) {
    smon_abort(token);
  } else if (t_pipeline.run.has_loss && is_true(args[0], &Stage::is_last, g_names.is_last, false)) {
    t_pipeline.run.forward_with_loss = token;
  } else {
    smon_end(token);
  }
  return output;
}

PyObject* loss(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  const smon_token token = std::exchange(t_pipeline.run.forward_with_loss, 0);
  PyObject* result = call_original(method, args, flagged, kwnames);
  if (result == nullptr) {
    smon_abort(token);
  } else {
    smon_end(token);
  }
  return result;
}

/// `kind` 0: a full backward, or the part for the inputs, as an argument says; 1: the part for the weights.
PyObject* backward(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(flagged);
  // Without a backward it returns at once.
  if (count == 0 || !is_true(args[0], &Stage::has_backward, g_names.has_backward, true)) {
    return call_original(method, args, flagged, kwnames);
  }
  PyObject* name = g_names.weight_name;
  if (method.kind == 0) {
    PyObject* is_full = argument(args, count, kwnames, 3, g_names.full_backward);
    const int is = is_full == nullptr ? 1 : PyObject_IsTrue(is_full);
    if (is < 0) PyErr_Clear();
    name = is != 0 ? nullptr : g_names.input_name;
  }
  const smon_token token = begin(SMON_BACKWARD_COMPUTE, ids_of(args, count, kwnames), name);
  await_backward_end(token);
  const StageBackward before = std::exchange(t_backward, {token != 0, false});
  PyObject* result = call_original(method, args, flagged, kwnames);
  t_backward = before;
  if (result == nullptr) {
    smon_abort(token);
  } else {
    // What DDP waits for at the end of its last backward is its collectives' time.
    smon_end_at(token, take_backward_end(), SMON_TIME_HOST, 0);
  }
  return result;
}

/// -1: it does not say.
std::int64_t bytes_of(PyObject* tensor) {
  const Reference size(PyObject_GetAttr(tensor, names().nbytes));
  const long long bytes = size ? PyLong_AsLongLong(size.get()) : -1;
  PyErr_Clear();
  return bytes;
}

/// Has the hooks of collectives know what operations are that a stage is about to have issued.
void expect_all(PyObject* operations, int kind, const Ids& ids) {
  Label label{kind, ids.microbatch, ids.chunk};
  const bool is_send = kind == SMON_FORWARD_SEND || kind == SMON_BACKWARD_SEND;
  const bool is_sampled = smon_is_sampled() != 0;
  // A label that is not found in a step that is not sampled is missed by nobody, unless the job hangs just then.
  const bool needs_place = is_sampled || !is_before_trusted() || !are_identities_enough();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(operations); ++i) {
    const Reference tensor(PyObject_GetAttr(PyList_GET_ITEM(operations, i), g_names.tensor));
    if (tensor) {
      const std::uintptr_t identity = identity_of(tensor.get());
      const std::uintptr_t place = needs_place || identity == 0 ? place_of(tensor.get()) : 0;
      if (is_sampled) label.payload_bytes = bytes_of(tensor.get());
      expect_transfer(place, identity, is_send, label);
    }
    PyErr_Clear();  // something else than an operation: it then has no microbatch
  }
}

PyObject* operations(const RecordedMethod& method, PyObject* const* args, std::size_t flagged, PyObject* kwnames) {
  PyObject* result = call_original(method, args, flagged, kwnames);
  if (result == nullptr || t_pipeline.run.is_eval || !PyList_Check(result) || PyList_GET_SIZE(result) == 0)
    return result;
  const Ids ids = t_pipeline.run.is_loop ? ids_of(args, PyVectorcall_NARGS(flagged), kwnames) : Ids{};
  expect_all(result, method.kind, ids);
  return result;
}

PyObject* recorded_stage_method(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static constexpr std::pair<const char*, MethodCall> kCalls[] = {
      {"forward", forward},       {"loss", loss},          {"backward", backward},
      {"operations", operations}, {"step", schedule_step}, {"startup", schedule_startup}};
  long kind = 0;
  if (count != 3 || !PyUnicode_Check(args[0]) || !read_int(args[2], kind)) {
    if (PyErr_Occurred() == nullptr) {
      PyErr_SetString(PyExc_TypeError, "recorded_stage_method() takes what it is, the method and a number");
    }
    return nullptr;
  }
  for (const auto& [name, call] : kCalls) {
    if (PyUnicode_CompareWithASCIIString(args[0], name) == 0) return make_method(call, args[1], static_cast<int>(kind));
  }
  return PyErr_Format(PyExc_ValueError, "there is no stage method %R", args[0]);
}

PyMethodDef g_calls[] = {
    {"recorded_stage_method", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&recorded_stage_method)),
     METH_FASTCALL, "What a method of a pipeline's stage becomes; see the stub."},
    {"learn_schedules", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&learn_schedules)), METH_FASTCALL,
     "What Python does of schedules; see the stub."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool enter_stage_backward() {
  // One inside another, as where activations are recomputed, is part of it.
  if (!t_backward.is_running || t_backward.is_engine_running) return false;
  t_backward.is_engine_running = true;
  close_forward(0);
  return true;
}

void leave_stage_backward() {
  t_backward.is_engine_running = false;
  end_reductions();
}

PyMethodDef* pipeline_calls() {
  return g_calls;
}

bool set_up_pipelines() {
  const std::pair<PyObject**, const char*> names[] = {
      {&g_names.stage_index, "stage_index"},
      {&g_names.group_size, "group_size"},
      {&g_names.is_last, "is_last"},
      {&g_names.has_backward, "has_backward"},
      {&g_names.full_backward, "full_backward"},
      {&g_names.tensor, "tensor"},
      {&g_names.microbatch[0], "fwd_chunk_id"},
      {&g_names.microbatch[1], "bwd_chunk_id"},
      {&g_names.input_name, "backward_input"},
      {&g_names.weight_name, "backward_weight"},
  };
  for (const auto& [name, text] : names) {
    *name = PyUnicode_InternFromString(text);
    if (*name == nullptr) return false;
  }
  return set_up_schedules();
}

}  // namespace smon_rt::bindings
