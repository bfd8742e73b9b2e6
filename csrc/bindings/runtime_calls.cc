// The hot calls of smon_rt._runtime. Cost: parsing, the recorder, and Python's own int for a token; no other
// allocation, no lock. Arguments are read as CPython hands them over (METH_FASTCALL): by position on the fast path.

#include "bindings/runtime_calls.h"

#include <atomic>

#include "bindings/runtime_arguments.h"

namespace smon_rt::bindings {

namespace {

std::atomic<bool> g_has_stepped{false};

/// A token as a Python int. Without memory for one, nothing was begun.
PyObject* to_python(smon_token token) {
  PyObject* number = PyLong_FromUnsignedLongLong(token);
  if (number != nullptr) [[likely]]
    return number;
  PyErr_Clear();
  smon_abort(token);
  return PyLong_FromLong(0);  // one of the ints that always exist
}

PyObject* begin(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "begin() needs a kind as its first argument");
    return nullptr;
  }
  SpanArguments arguments;
  if (!parse_kind("begin", args[0], arguments.kind)) return nullptr;
  if ((count > 1 || kwnames != nullptr) && !parse_ids("begin", args + 1, count - 1, kwnames, arguments)) return nullptr;
  if (arguments.name != nullptr) arguments.ids.name_id = name_id(arguments.name);
  return to_python(smon_begin(static_cast<smon_kind>(arguments.kind), &arguments.ids));
}

PyObject* end(PyObject*, PyObject* object) {
  smon_token token;
  if (!parse_token("end", object, token)) return nullptr;
  smon_end(token);
  Py_RETURN_NONE;
}

PyObject* abort(PyObject*, PyObject* object) {
  smon_token token;
  if (!parse_token("abort", object, token)) return nullptr;
  smon_abort(token);
  Py_RETURN_NONE;
}

// For integrations alone, so it takes ints by position and says no more than that.
PyObject* end_at(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("end_at", count, 4)) return nullptr;
  smon_token token;
  if (!parse_token("end_at", args[0], token)) return nullptr;
  const long long ticks = PyLong_AsLongLong(args[1]);
  const long source = PyLong_AsLong(args[2]);
  const long flags = PyLong_AsLong(args[3]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  smon_end_at(token, ticks, static_cast<smon_time_source>(source), static_cast<std::uint16_t>(flags));
  Py_RETURN_NONE;
}

PyObject* ticks(PyObject*, PyObject*) {
  return PyLong_FromLongLong(smon_ticks());
}

PyObject* find_open(PyObject*, PyObject* object) {
  const unsigned long kinds = PyLong_AsUnsignedLong(object);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return to_python(smon_find_open(static_cast<std::uint32_t>(kinds)));
}

PyObject* annotate(PyObject*, PyObject* const* args, Py_ssize_t count, PyObject* kwnames) {
  if (count < 1) {
    PyErr_SetString(PyExc_TypeError, "annotate() needs a token as its first argument");
    return nullptr;
  }
  smon_token token;
  SpanArguments arguments;
  if (!parse_token("annotate", args[0], token)) return nullptr;
  if (!parse_ids("annotate", args + 1, count - 1, kwnames, arguments)) return nullptr;
  if (arguments.name != nullptr) arguments.ids.name_id = name_id(arguments.name);
  smon_annotate(token, &arguments.ids);
  Py_RETURN_NONE;
}

PyObject* current(PyObject*, PyObject*) {
  return to_python(smon_current());
}

PyObject* is_sampled(PyObject*, PyObject*) {
  return PyBool_FromLong(smon_is_sampled());
}

PyObject* step_begin(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 0 && !has_arguments("step_begin", count, 1)) return nullptr;
  if (!begin_step(count == 1 ? args[0] : Py_None)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* step_end(PyObject*, PyObject*) {
  smon_step_end();
  Py_RETURN_NONE;
}

PyObject* has_stepped(PyObject*, PyObject*) {
  return PyBool_FromLong(g_has_stepped.load(std::memory_order_relaxed) ? 1 : 0);
}

PyObject* metric(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("metric", count, 2)) return nullptr;
  PyObject* name = args[0];
  if (!PyUnicode_Check(name)) {
    if (!misuse(false, "metric: the name is a %s, expected str; left out", Py_TYPE(name)->tp_name)) return nullptr;
    Py_RETURN_NONE;
  }
  const double value = PyFloat_AsDouble(args[1]);
  if (value == -1.0 && PyErr_Occurred() != nullptr) {
    if (!misuse(false, "metric %R: the value is a %s, expected a number; left out", name, Py_TYPE(args[1])->tp_name))
      return nullptr;
    Py_RETURN_NONE;
  }
  smon_metric(name_id(name), value);
  Py_RETURN_NONE;
}

template <typename Function>
PyCFunction as_method(Function function) {
  // As CPython's own modules do: ml_flags say what the function really takes.
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_calls[] = {
    {"begin", as_method(&begin), METH_FASTCALL | METH_KEYWORDS, "Begins a span and returns its token; see the stub."},
    {"end", as_method(&end), METH_O, "Ends a span, on any thread, once."},
    {"abort", as_method(&abort), METH_O, "Ends a span that an exception left."},
    {"end_at", as_method(&end_at), METH_FASTCALL, "Ends a span at a time, by a source, with flags; see the stub."},
    {"ticks", as_method(&ticks), METH_NOARGS, "The clock of spans, now."},
    {"find_open", as_method(&find_open), METH_O, "Token of this thread's innermost open span of some kinds."},
    {"annotate", as_method(&annotate), METH_FASTCALL | METH_KEYWORDS, "Adds ids to an open span."},
    {"current", as_method(&current), METH_NOARGS, "Token of this thread's innermost open span, 0 if none."},
    {"is_sampled", as_method(&is_sampled), METH_NOARGS, "Whether the spans of the current step are recorded."},
    {"step_begin", as_method(&step_begin), METH_FASTCALL, "Begins a step; without a number it is counted."},
    {"step_end", as_method(&step_end), METH_NOARGS, "Ends the step."},
    {"has_stepped", as_method(&has_stepped), METH_NOARGS, "Whether a step has begun in this process."},
    {"metric", as_method(&metric), METH_FASTCALL, "Records a value at this point in time."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

bool begin_step(PyObject* number) {
  g_has_stepped.store(true, std::memory_order_relaxed);
  long long step = -1;
  if (number != Py_None) {
    PyObject* index = PyNumber_Index(number);
    if (index == nullptr) {
      if (!misuse(false, "step: the number of a step is an int, got a %s; counted instead", Py_TYPE(number)->tp_name))
        return false;
    } else {
      int overflow;
      step = PyLong_AsLongLongAndOverflow(index, &overflow);
      Py_DECREF(index);
    }
  }
  smon_step_begin(step < 0 ? -1 : step);
  return true;
}

PyMethodDef* runtime_calls() {
  return g_calls;
}

}  // namespace smon_rt::bindings
