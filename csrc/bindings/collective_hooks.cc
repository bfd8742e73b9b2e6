// The hooks of process groups: torch calls one before it issues an operation, one after that. Python's part is what
// happens seldom: names of communicators, gradients reduced by hand, futures (integrations/torch/collectives.py).
//
// A training step issues dozens of operations, and most steps are not sampled: of these no more is found out than what
// the table of open spans shows, the short way as far as torch_layout.h reads torch's arguments.

#include "bindings/collective_hooks.h"

#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "bindings/collective_issue.h"
#include "bindings/collective_table.h"
#include "bindings/forward_state.h"
#include "bindings/last_work.h"
#include "bindings/python_reference.h"
#include "bindings/thread_state.h"
#include "bindings/torch_attributes.h"
#include "bindings/torch_layout.h"
#include "bindings/transfer_labels.h"

namespace smon_rt::bindings {

namespace {

constexpr std::uint16_t kNotWaited = 1U << 9;  // of span_flag in format/span.h

/// From here to its other hook it is its thread's.
void keep_in_thread(const Hooks* hooks, std::int64_t op_id, const Begun& begun, std::uint32_t recording) {
  Issued& place = t_thread.issued;
  if (place.begun.token != 0 && place.recording == recording) [[unlikely]]
    keep_issued(place.group, place.op_id, place.begun);
  place = {hooks, op_id, begun, recording};
}

}  // namespace

Begun take_from_thread(const Hooks& hooks, std::int64_t op_id) {
  Issued& place = t_thread.issued;
  if (place.group != &hooks || place.op_id != op_id || place.begun.token == 0) return take_issued(&hooks, op_id);
  const Begun begun = place.begun;
  place.begun.token = 0;
  return place.recording == g_counts.recording.load(std::memory_order_relaxed) ? begun : Begun{};
}

bool begin_transfer(Hooks& hooks, const PreHookArgs& read, std::uint32_t recording) {
  if (hooks.recording.load(std::memory_order_acquire) != recording) return false;
  const Operation* operation = find_operation(read.name);
  if (operation == nullptr || !operation->is_p2p) return false;
  const bool is_sampled = smon_is_sampled() != 0;
  if (is_sampled && !has_transfers()) return false;
  smon_span_ids ids = SMON_NO_IDS;
  ids.comm_id = hooks.comm_id.load(std::memory_order_relaxed);
  ids.peer = hooks.member(read.root);
  int kind;
  Label label;
  if (has_transfers()) {
    const auto take = is_sampled ? take_whole_transfer_of : take_transfer_of;
    if (!take(reinterpret_cast<std::uintptr_t>(read.first_tensor()), operation->is_send, label))
      return false;  // its data may still be known
    kind = label.kind;
    if (is_sampled) ids.payload_bytes = static_cast<std::uint64_t>(label.payload_bytes);
    ids.microbatch = label.microbatch;
    ids.chunk = label.chunk;
  } else if (t_thread.kinds == nullptr) {
    kind = direction(hooks.rank, ids.peer, operation->is_send);
  } else {
    kind = said_kind(read.name);
  }
  close_forward(0);
  Begun begun;
  begun.is_unsampled = !is_sampled;
  begun.is_read = true;
  begun.token = begin_operation(kind, ids);
  if (begun.token != 0) keep_in_thread(&hooks, read.op_id, begun, recording);
  return true;
}

[[gnu::noinline]] bool begin_any(Hooks& hooks, PyObject* args, std::uint32_t recording) {
  prove_before(args);
  Issue issue(&hooks, args);
  if (!find_out(issue, recording)) return false;
  if (!issue.operation.is_known) return true;
  close_forward(0);
  issue.begun.token = begin_operation(issue.kind, issue.ids);
  if (issue.begun.token != 0) keep_in_thread(&hooks, issue.op_id, issue.begun, recording);
  return true;
}

namespace {

/// Without a work: several operations have one together, which no hook sees, or it was done inside the call.
void end_without_work(smon_token token, bool is_coalesced) {
  end_operation(token, is_coalesced ? SMON_TIME_HOST : SMON_TIME_WAIT_RETURN, is_coalesced ? kNotWaited : 0);
}

}  // namespace

void issued_read(const Begun& begun, const PostHookArgs& read) {
  // What ends it is found by what torch has of its work: so nothing of Python is made for it, and nothing kept.
  if (read.work != nullptr) {
    await_without_python(key_of_work(read.work), begun);
  } else {
    end_without_work(begun.token, read.is_async);
  }
}

void issued_unseen(const PostHookArgs& read) {
  if (read.work != nullptr) forget_awaited(key_of_work(read.work));
}

[[gnu::noinline]] bool issued_any(const Begun& begun, PyObject* args) {
  const Reference work = get(torch().work, args);
  bool is_coalesced = false;
  if (work && work.get() == Py_None) {
    const Reference is_async = get(torch().post_async_op, args);
    is_coalesced = is_async.get() == Py_True;
  }
  if (!work || PyErr_Occurred() != nullptr) {
    abort_operation(begun.token);
    return false;
  }
  return operation_issued(begun, work.get(), is_coalesced);
}

[[gnu::noinline]] bool issued_unread(Hooks& hooks, PyObject* args) {
  prove_after(args);
  long long op_id;
  if (!read_number(get(torch().post_op_id, args).get(), op_id)) return false;
  const Begun begun = take_from_thread(hooks, op_id);
  return begun.token == 0 || issued_any(begun, args);
}

namespace {

Hooks& hooks_in(PyObject* object) {
  return *reinterpret_cast<Hooks*>(object);
}

/// Whatever it is that hooks raise goes no further, an interrupt excepted.
[[gnu::noinline]] PyObject* begin_or_swallow(PyObject* object, PyObject* args, std::uint32_t recording) {
  if (torch().failed != nullptr && !begin_any(hooks_in(object), args, recording) && !swallow_error()) return nullptr;
  Py_RETURN_NONE;
}

[[gnu::hot]] PyObject* before(PyObject* object, PyObject* args) {
  const std::uint32_t recording = g_counts.recording.load(std::memory_order_relaxed);
  if (recording == 0) Py_RETURN_NONE;
  const PreHookArgs* read = read_before(args);
  if (read == nullptr || !begin_transfer(hooks_in(object), *read, recording))
    return begin_or_swallow(object, args, recording);
  Py_RETURN_NONE;
}

bool issued(Hooks& hooks, PyObject* args) {
  const PostHookArgs* read = read_after(args);
  if (read == nullptr) return issued_unread(hooks, args);
  const Begun begun = take_from_thread(hooks, read->op_id);
  if (begun.token != 0 && !begun.is_read) return issued_any(begun, args);
  if (begun.token == 0) {
    issued_unseen(*read);
  } else {
    issued_read(begun, *read);
  }
  return true;
}

[[gnu::hot]] PyObject* after(PyObject* object, PyObject* args) {
  if (t_thread.issued.begun.token != 0 || has_issued()) {
    if (!issued(hooks_in(object), args) && !swallow_error()) return nullptr;
  } else if (has_awaited()) {
    if (const PostHookArgs* read = read_after(args); read != nullptr) issued_unseen(*read);
  }
  Py_RETURN_NONE;
}

PyMethodDef g_before = {"before", &before, METH_O, "Begins the span of an operation that is about to be issued."};
PyMethodDef g_after = {"after", &after, METH_O, "The operation has been issued."};

void delete_hooks(PyObject* object) {
  auto* hooks = reinterpret_cast<Hooks*>(object);
  PyTypeObject* type = Py_TYPE(object);
  if (hooks->members != hooks->few_members.data()) PyMem_Free(hooks->members);
  Py_XDECREF(hooks->group);
  PyObject_Free(object);
  Py_DECREF(type);
}

PyType_Slot g_hooks_slots[] = {
    {Py_tp_doc, const_cast<char*>("What the hooks of one process group know of it.")},
    {Py_tp_dealloc, reinterpret_cast<void*>(&delete_hooks)},
    {0, nullptr},
};

PyType_Spec g_hooks_spec = {"smon_rt._runtime.collective_hooks", static_cast<int>(sizeof(Hooks)), 0,
                            Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, g_hooks_slots};
PyTypeObject* g_hooks_type = nullptr;

PyObject* dropped(PyObject*, PyObject* reference) {
  end_dropped(reference);
  Py_RETURN_NONE;
}

PyMethodDef g_dropped = {"dropped", &dropped, METH_O, "Nobody can wait for this work any more."};

void let_go_of(PyObject* reference) {
  Py_DECREF(reference);
}

}  // namespace

Hooks* hooks_of(PyObject* hook) {
  if (!PyCFunction_Check(hook) || PyCFunction_GET_FUNCTION(hook) != &before) return nullptr;
  return reinterpret_cast<Hooks*>(PyCFunction_GET_SELF(hook));
}

bool swallow_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;  // the user's interrupt
  const Reference error = take_error();
  if (torch().failed == nullptr || !error || !Reference(PyObject_CallOneArg(torch().failed, error.get())))
    PyErr_Clear();
  return true;
}

bool operation_issued(const Begun& begun, PyObject* work, bool is_coalesced) {
  if (work == Py_None) {
    end_without_work(begun.token, is_coalesced);
    return true;
  }
  if (begun.origin == Origin::kPython) {
    Reference reference(PyWeakref_NewRef(work, torch().dropped));
    if (!reference) {
      abort_operation(begun.token);
      return false;
    }
    keep_last_work(work);
    await(reinterpret_cast<std::uintptr_t>(work), begun, reference.release());
    return true;
  }
  const std::uintptr_t key = make_key();
  await(key, begun, nullptr);
  if (begun.address != 0 || !begun.is_on_cpu || torch().end_with_future == nullptr) return true;
  const Reference number(PyLong_FromUnsignedLongLong(key));
  return number && Reference(PyObject_CallFunctionObjArgs(torch().end_with_future, number.get(), work, nullptr));
}

PyObject* make_collective_hooks(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 3 || !PyList_Check(args[2])) {
    PyErr_SetString(PyExc_TypeError, "make_collective_hooks() takes a group, its rank and a list of its members");
    return nullptr;
  }
  const long rank = PyLong_AsLong(args[1]);
  if (rank == -1 && PyErr_Occurred() != nullptr) return nullptr;
  auto* hooks = PyObject_New(Hooks, g_hooks_type);
  if (hooks == nullptr) return nullptr;
  const Reference owner(reinterpret_cast<PyObject*>(hooks));
  new (&hooks->recording) std::atomic<std::uint32_t>(0);
  new (&hooks->comm_id) std::atomic<std::uint16_t>(0);
  Py_INCREF(args[0]);
  hooks->group = args[0];
  hooks->members = hooks->few_members.data();
  hooks->member_count = PyList_GET_SIZE(args[2]);
  const auto count_of_members = static_cast<std::size_t>(hooks->member_count);
  if (count_of_members > hooks->few_members.size()) {
    hooks->members = static_cast<std::int32_t*>(PyMem_Malloc(count_of_members * sizeof(std::int32_t)));
    if (hooks->members == nullptr) return PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < hooks->member_count; ++i) {
    const long member = PyLong_AsLong(PyList_GET_ITEM(args[2], i));
    if (member == -1 && PyErr_Occurred() != nullptr) return nullptr;
    hooks->members[i] = static_cast<std::int32_t>(member);
  }
  hooks->rank = hooks->member(rank);
  const Reference first(PyCFunction_New(&g_before, owner.get()));
  const Reference second(PyCFunction_New(&g_after, owner.get()));
  return first && second ? PyTuple_Pack(2, first.get(), second.get()) : nullptr;
}

PyObject* act_on_collectives(PyObject*, PyObject* recording) {
  const unsigned long number = PyLong_AsUnsignedLong(recording);
  if (PyErr_Occurred() != nullptr) return nullptr;
  g_counts.recording.store(static_cast<std::uint32_t>(number));
  Py_RETURN_NONE;
}

PyObject* exchange_kinds(PyObject*, PyObject* kinds) {
  if (kinds != Py_None && !PyBytes_Check(kinds)) {
    return PyErr_Format(PyExc_TypeError, "exchange_kinds() takes bytes or None, got a %s", Py_TYPE(kinds)->tp_name);
  }
  PyObject* given = kinds == Py_None ? nullptr : kinds;
  Py_XINCREF(given);
  PyObject* before = std::exchange(t_thread.kinds, given);
  if (before == nullptr) Py_RETURN_NONE;
  return before;
}

bool set_up_hooks(PyObject* module) {
  set_up_table(&let_go_of);
  g_hooks_type = reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &g_hooks_spec, nullptr));
  torch().dropped = PyCFunction_New(&g_dropped, nullptr);
  torch().graph_task = Py_None;
  return g_hooks_type != nullptr && torch().dropped != nullptr;
}

}  // namespace smon_rt::bindings
