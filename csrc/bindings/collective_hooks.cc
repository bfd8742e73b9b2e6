// The hooks of process groups: torch calls one before it issues an operation, one after that. Python's part is what
// happens seldom: names of communicators, gradients reduced by hand, futures (integrations/torch/collectives.py).
//
// What torch hands over is an object whose attributes are costly (its `name` takes a microsecond), so only what is
// needed is read, and what a call site of torch's own file issues is read once.

#include "bindings/collective_hooks.h"

#include <array>
#include <atomic>
#include <new>
#include <utility>

#include "bindings/collective_table.h"
#include "bindings/forward_state.h"
#include "bindings/python_reference.h"
#include "bindings/torch_attributes.h"
#include "bindings/torch_caller.h"

namespace smon_rt::bindings {

namespace {

constexpr std::uint16_t kNotWaited = 1U << 9;  // of span_flag in format/span.h

std::atomic<std::uint32_t> g_recording{0};  // 0: hooks do not act
std::atomic<bool> g_must_look{false};

/// One process group.
struct Hooks {
  PyObject_HEAD PyObject* group;         // of groups.py
  std::atomic<std::uint32_t> recording;  // that comm_id is of
  std::atomic<std::uint16_t> comm_id;
  int rank;
  Py_ssize_t member_count;
  std::int32_t* members;
};

/// Kinds that an integration says operations of this thread have: a byte each, or nullptr.
thread_local PyObject* t_kinds = nullptr;

bool add_bytes(const Reference& tensors, std::uint64_t& bytes) {
  const Py_ssize_t count = PyList_Check(tensors.get()) ? PyList_GET_SIZE(tensors.get()) : 0;
  for (Py_ssize_t i = 0; i < count; ++i) {
    long long value;
    const Reference size(PyObject_GetAttr(PyList_GET_ITEM(tensors.get(), i), names().nbytes));
    if (!read_number(size.get(), value)) return false;
    bytes += static_cast<std::uint64_t>(value);
  }
  return true;
}

/// A transfer that nobody has explained: towards higher ranks is forward. Both sides find the same.
int direction(std::int32_t rank, std::int32_t peer, bool is_send) {
  const bool is_forward = is_send ? rank < peer : peer < rank;
  if (is_forward) return is_send ? SMON_FORWARD_SEND : SMON_FORWARD_RECV;
  return is_send ? SMON_BACKWARD_SEND : SMON_BACKWARD_RECV;
}

/// What one call of the hook finds out.
struct Issue {
  Issue(Hooks* of_group, PyObject* of_torch) : hooks(of_group), args(of_torch) {}

  Hooks* hooks;
  PyObject* args;
  Caller caller;
  std::size_t number = 0;
  Operation operation;
  Reference tensors;
  int kind = SMON_COLLECTIVE;
  smon_span_ids ids = SMON_NO_IDS;
  Begun begun;
};

bool find_transfer(Issue& issue) {
  long long root;
  if (!read_number(get(torch().root, issue.args).get(), root)) return false;
  const Hooks& hooks = *issue.hooks;
  if (root >= 0 && root < hooks.member_count) issue.ids.peer = hooks.members[root];
  PyObject* tensor = first_of(issue.tensors);
  Label label;
  if (tensor != nullptr && has_transfers() && take_transfer(place_of(tensor), issue.operation.is_send, label)) {
    issue.kind = label.kind;
    issue.ids.microbatch = label.microbatch;
    issue.ids.chunk = label.chunk;
  } else if (t_kinds == nullptr) {
    const std::int32_t rank = hooks.rank < hooks.member_count ? hooks.members[hooks.rank] : -1;
    issue.kind = direction(rank, issue.ids.peer, issue.operation.is_send);
  }
  return true;
}

/// Whether a reduction is one of gradients: see gradients.py.
bool find_reduction(Issue& issue) {
  bool is_in;
  bool is_reduction = false;
  if (!read_is_in_backward(is_in)) return false;
  if (is_in) {
    const bool is_engine = issue.caller.origin() == Origin::kEngine;
    is_reduction = is_engine || (issue.caller.origin() == Origin::kPython && issue.caller.is_called_by_hook());
    if (is_engine && !Reference(PyObject_CallNoArgs(torch().reduction_began))) return false;
  } else if (g_must_look.load(std::memory_order_relaxed) && issue.caller.origin() == Origin::kPython) {
    if (!issue.tensors) issue.tensors = tensors_of(issue.args);
    if (!issue.tensors) return false;
    const Reference found(PyObject_CallOneArg(torch().are_gradients, issue.tensors.get()));
    if (!found) return false;
    is_reduction = found.get() == Py_True;
  }
  if (is_reduction) issue.kind = issue.operation.reduces_to;
  return true;
}

bool find_kind(Issue& issue) {
  if (t_kinds != nullptr && issue.number < static_cast<std::size_t>(PyBytes_GET_SIZE(t_kinds))) {
    issue.kind = static_cast<unsigned char>(PyBytes_AS_STRING(t_kinds)[issue.number]);
  }
  if (issue.operation.is_p2p) return find_transfer(issue);
  return t_kinds != nullptr || issue.operation.reduces_to == 0 || find_reduction(issue);
}

/// Its number in the running recording, asked of Python at the first operation in it.
bool find_communicator(Issue& issue, std::uint32_t recording) {
  Hooks& hooks = *issue.hooks;
  if (hooks.recording.load(std::memory_order_acquire) != recording) {
    long long id;
    if (!read_number(Reference(PyObject_CallMethodNoArgs(hooks.group, names().register_group)).get(), id)) return false;
    hooks.comm_id.store(static_cast<std::uint16_t>(id), std::memory_order_relaxed);
    hooks.recording.store(recording, std::memory_order_release);  // pairs with the acquire above
  }
  issue.ids.comm_id = hooks.comm_id.load(std::memory_order_relaxed);
  return true;
}

/// What the end will be found by, for an operation that Python does not wait for by itself.
bool find_result(Issue& issue) {
  issue.begun.origin = issue.caller.origin();
  if (issue.begun.origin == Origin::kPython) return true;
  PyObject* tensor = first_of(issue.tensors);
  if (tensor == nullptr) return true;
  const Reference is_cpu(PyObject_GetAttr(tensor, names().is_cpu));
  if (!is_cpu) return false;
  issue.begun.is_on_cpu = is_cpu.get() == Py_True;
  if (issue.begun.origin != Origin::kFunctional) return true;
  const Reference outputs = get(torch().output_tensors, issue.args);
  if (!outputs) return false;
  PyObject* output = first_of(outputs);
  issue.begun.address = place_of(output != nullptr ? output : tensor);
  return true;
}

bool begin(Hooks* hooks, PyObject* args, std::uint32_t recording) {
  Issue issue(hooks, args);
  if (!read_operation(args, issue.caller, issue.number, issue.operation)) return false;
  if (!issue.operation.is_known) return true;
  close_forward(0);
  // In a step that is not sampled nobody reads how much was sent.
  const bool is_sampled = smon_is_sampled() != 0;
  if (is_sampled || issue.caller.origin() != Origin::kPython || (issue.operation.is_p2p && has_transfers())) {
    issue.tensors = tensors_of(args);
    if (!issue.tensors) return false;
  }
  if (!find_communicator(issue, recording) || !find_kind(issue) || !find_result(issue)) return false;
  if (is_sampled && !add_bytes(issue.tensors, issue.ids.payload_bytes)) return false;
  long long op_id;
  if (!read_number(get(torch().op_id, args).get(), op_id)) return false;
  issue.begun.token = begin_operation(issue.kind, issue.ids);
  if (issue.begun.token != 0) keep_issued(hooks, static_cast<std::uint64_t>(op_id), issue.begun);
  return true;
}

PyObject* before(PyObject* object, PyObject* args) {
  const std::uint32_t recording = g_recording.load(std::memory_order_relaxed);
  if (recording != 0 && torch().failed != nullptr && !begin(reinterpret_cast<Hooks*>(object), args, recording) &&
      !swallow_error())
    return nullptr;
  Py_RETURN_NONE;
}

bool issued(Hooks* hooks, PyObject* args) {
  long long op_id;
  if (!read_number(get(torch().post_op_id, args).get(), op_id)) return false;
  const Begun begun = take_issued(hooks, static_cast<std::uint64_t>(op_id));
  if (begun.token == 0) return true;
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

PyObject* after(PyObject* object, PyObject* args) {
  if (has_issued() && !issued(reinterpret_cast<Hooks*>(object), args) && !swallow_error()) return nullptr;
  Py_RETURN_NONE;
}

PyMethodDef g_before = {"before", &before, METH_O, "Begins the span of an operation that is about to be issued."};
PyMethodDef g_after = {"after", &after, METH_O, "The operation has been issued."};

void delete_hooks(PyObject* object) {
  auto* hooks = reinterpret_cast<Hooks*>(object);
  PyTypeObject* type = Py_TYPE(object);
  PyMem_Free(hooks->members);
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

}  // namespace

bool swallow_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;  // the user's interrupt
  const Reference error = take_error();
  if (torch().failed == nullptr || !error || !Reference(PyObject_CallOneArg(torch().failed, error.get())))
    PyErr_Clear();
  return true;
}

bool operation_issued(const Begun& begun, PyObject* work, bool is_coalesced) {
  if (work == Py_None) {
    end_operation(begun.token, is_coalesced ? SMON_TIME_HOST : SMON_TIME_WAIT_RETURN, is_coalesced ? kNotWaited : 0);
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
  hooks->rank = static_cast<int>(rank);
  hooks->member_count = PyList_GET_SIZE(args[2]);
  hooks->members = static_cast<std::int32_t*>(
      PyMem_Malloc(static_cast<std::size_t>(hooks->member_count + 1) * sizeof(std::int32_t)));
  if (hooks->members == nullptr) return PyErr_NoMemory();
  for (Py_ssize_t i = 0; i < hooks->member_count; ++i) {
    const long member = PyLong_AsLong(PyList_GET_ITEM(args[2], i));
    if (member == -1 && PyErr_Occurred() != nullptr) return nullptr;
    hooks->members[i] = static_cast<std::int32_t>(member);
  }
  const Reference first(PyCFunction_New(&g_before, owner.get()));
  const Reference second(PyCFunction_New(&g_after, owner.get()));
  return first && second ? PyTuple_Pack(2, first.get(), second.get()) : nullptr;
}

PyObject* act_on_collectives(PyObject*, PyObject* recording) {
  const unsigned long number = PyLong_AsUnsignedLong(recording);
  if (PyErr_Occurred() != nullptr) return nullptr;
  g_recording.store(static_cast<std::uint32_t>(number));
  Py_RETURN_NONE;
}

PyObject* set_must_look(PyObject*, PyObject* must_look) {
  g_must_look.store(must_look == Py_True, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

PyObject* exchange_kinds(PyObject*, PyObject* kinds) {
  if (kinds != Py_None && !PyBytes_Check(kinds)) {
    return PyErr_Format(PyExc_TypeError, "exchange_kinds() takes bytes or None, got a %s", Py_TYPE(kinds)->tp_name);
  }
  PyObject* given = kinds == Py_None ? nullptr : kinds;
  Py_XINCREF(given);
  PyObject* before = std::exchange(t_kinds, given);
  if (before == nullptr) Py_RETURN_NONE;
  return before;
}

bool set_up_hooks(PyObject* module) {
  g_hooks_type = reinterpret_cast<PyTypeObject*>(PyType_FromModuleAndSpec(module, &g_hooks_spec, nullptr));
  torch().dropped = PyCFunction_New(&g_dropped, nullptr);
  torch().graph_task = Py_None;
  return g_hooks_type != nullptr && torch().dropped != nullptr;
}

}  // namespace smon_rt::bindings
