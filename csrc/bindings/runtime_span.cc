// The type smon_rt._runtime.span: a context manager of C, since one of Python costs ten times a recorded span.

#include <Python.h>
#include <pthread.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"

#if PY_VERSION_HEX < 0x030D0000
// Of free-threaded Python; with the GIL nothing needs to be locked.
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

namespace smon_rt::bindings {

namespace {

struct OpenSpan {
  smon_token token = 0;
  pthread_t thread = 0;
};

/// What `with` enters. Most often once; but an object may be kept and entered again, before it was left (recursion) and
/// by other threads, so it holds as many open spans as it must. A thread leaves its own, the latest first.
struct SpanObject {
  PyObject_HEAD smon_span_ids ids;
  PyObject* name;            // or nullptr
  std::uint64_t name_cache;  // of cached_name_id()
  int kind;
  bool is_open;
  OpenSpan open;                // if is_open
  std::vector<OpenSpan>* more;  // opened while `open` was, in order; nullptr: none
};

SpanObject* to_span(PyObject* object) {
  return reinterpret_cast<SpanObject*>(object);
}

PyObject* new_span(PyObject* type, PyObject* const* args, std::size_t count_and_flag, PyObject* kwnames) {
  const Py_ssize_t count = PyVectorcall_NARGS(count_and_flag);
  if (count != 1) {
    PyErr_Format(PyExc_TypeError, "span() takes a kind and, by keyword, ids; got %zd positional arguments", count);
    return nullptr;
  }
  SpanArguments arguments;
  if (!parse_kind("span", args[0], arguments.kind)) return nullptr;
  if (kwnames != nullptr && !parse_ids("span", args + 1, 0, kwnames, arguments)) return nullptr;
  auto* self = PyObject_New(SpanObject, reinterpret_cast<PyTypeObject*>(type));
  if (self == nullptr) return nullptr;
  self->ids = arguments.ids;
  self->name = arguments.name;
  Py_XINCREF(self->name);
  self->name_cache = 0;
  self->kind = arguments.kind;
  self->is_open = false;
  self->more = nullptr;
  return reinterpret_cast<PyObject*>(self);
}

void delete_span(PyObject* object) {
  SpanObject* self = to_span(object);
  PyTypeObject* type = Py_TYPE(object);
  // Entered and never left, as by a generator that nobody finished: what is open then was left in the lurch.
  if (self->is_open) [[unlikely]]
    smon_abort(self->open.token);
  if (self->more != nullptr) {
    for (const OpenSpan& open : *self->more) smon_abort(open.token);
    delete self->more;
  }
  Py_XDECREF(self->name);
  PyObject_Free(object);
  Py_DECREF(type);
}

/// Keeps a span opened while another is. Without memory it is not recorded.
void keep(SpanObject* self, const OpenSpan& open) {
  try {
    if (self->more == nullptr) self->more = new std::vector<OpenSpan>;
    self->more->push_back(open);
  } catch (const std::bad_alloc&) {
    smon_abort(open.token);
  }
}

/// The open span that the calling thread leaves: its latest; a thread that has none leaves the latest of all, since an
/// async task may go on elsewhere. False: none is open.
bool take(SpanObject* self, smon_token& token) {
  if (!self->is_open) return false;
  const pthread_t thread = pthread_self();
  std::vector<OpenSpan>* more = self->more;
  if (more == nullptr || more->empty()) [[likely]] {
    token = self->open.token;
    self->is_open = false;
    return true;
  }
  std::size_t at = more->size();
  while (at > 0 && (*more)[at - 1].thread != thread) --at;
  if (at == 0 && self->open.thread != thread) at = more->size();
  if (at > 0) {
    token = (*more)[at - 1].token;
  } else {
    token = self->open.token;
    self->open = more->front();
    at = 1;
  }
  more->erase(more->begin() + static_cast<std::ptrdiff_t>(at - 1));
  return true;
}

PyObject* enter(PyObject* object, PyObject*) {
  SpanObject* self = to_span(object);
  smon_span_ids ids = self->ids;
  if (self->name != nullptr) ids.name_id = cached_name_id(self->name, self->name_cache);
  const OpenSpan open{smon_begin(static_cast<smon_kind>(self->kind), &ids), pthread_self()};
  Py_BEGIN_CRITICAL_SECTION(object);
  if (!self->is_open) [[likely]] {
    self->open = open;
    self->is_open = true;
  } else {
    keep(self, open);
  }
  Py_END_CRITICAL_SECTION();
  Py_INCREF(object);
  return object;
}

PyObject* exit(PyObject* object, PyObject* const* args, Py_ssize_t count) {
  bool was_open = false;
  smon_token token = 0;
  Py_BEGIN_CRITICAL_SECTION(object);
  was_open = take(to_span(object), token);
  Py_END_CRITICAL_SECTION();
  if (!was_open) {
    if (!misuse(false, "span: left more often than entered")) return nullptr;
  } else if (count > 0 && args[0] != Py_None) {
    smon_abort(token);
  } else {
    smon_end(token);
  }
  Py_RETURN_FALSE;
}

/// The innermost open span's token, 0 if none: for annotate().
PyObject* token_of(PyObject* object, void*) {
  smon_token token = 0;
  Py_BEGIN_CRITICAL_SECTION(object);
  const SpanObject* self = to_span(object);
  if (self->is_open) token = self->more == nullptr || self->more->empty() ? self->open.token : self->more->back().token;
  Py_END_CRITICAL_SECTION();
  return PyLong_FromUnsignedLongLong(token);
}

PyMethodDef g_span_methods[] = {
    {"__enter__", enter, METH_NOARGS, nullptr},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(&exit)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyGetSetDef g_span_properties[] = {
    {"token", token_of, nullptr, "Token of the span that is open, 0 if none: for annotate().", nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr},
};

PyType_Slot g_span_slots[] = {
    {Py_tp_doc, const_cast<char*>("span(kind, *, microbatch=-1, …): a context manager that records what it encloses.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(&delete_span)},
    {Py_tp_methods, g_span_methods},
    {Py_tp_getset, g_span_properties},
    {0, nullptr},
};

// Immutable, which is what lets the interpreter call its constructor without a detour.
PyType_Spec g_span_spec = {
    "smon_rt._runtime.span",
    static_cast<int>(sizeof(SpanObject)),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    g_span_slots,
};

}  // namespace

PyObject* make_span_type(PyObject* module) {
  PyObject* type = PyType_FromModuleAndSpec(module, &g_span_spec, nullptr);
  // The only constructor; there is no slot for it before Python 3.14.
  if (type != nullptr) reinterpret_cast<PyTypeObject*>(type)->tp_vectorcall = new_span;
  return type;
}

}  // namespace smon_rt::bindings
