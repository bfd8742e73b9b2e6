// The calls of smon_rt._runtime that integrations with frameworks share.

#include <array>
#include <cstddef>

#include "bindings/collective_hooks.h"
#include "bindings/collective_issue.h"
#include "bindings/collective_table.h"
#include "bindings/hook_functions.h"
#include "bindings/last_work.h"
#include "bindings/python_reference.h"
#include "bindings/recorded_method.h"
#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"
#include "bindings/thread_state.h"
#include "bindings/torch_attributes.h"
#include "bindings/torch_caller.h"
#include "bindings/torch_layout.h"
#include "bindings/transfer_labels.h"

namespace smon_rt::bindings {

namespace {

Names g_names;

PyObject* begin_operation_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("begin_operation", count, 7)) return nullptr;
  std::array<long long, 7> values{};
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = PyLong_AsLongLong(args[i]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  smon_span_ids ids = SMON_NO_IDS;
  ids.microbatch = static_cast<std::int16_t>(values[1]);
  ids.chunk = static_cast<std::int16_t>(values[2]);
  ids.comm_id = static_cast<std::uint16_t>(values[3]);
  ids.peer = static_cast<std::int32_t>(values[4]);
  ids.payload_bytes = static_cast<std::uint64_t>(values[5]);
  ids.flags = static_cast<std::uint16_t>(values[6]);
  return PyLong_FromUnsignedLongLong(begin_operation(static_cast<int>(values[0]), ids));
}

PyObject* issue_operation(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("issue_operation", count, 5)) return nullptr;
  Begun begun;
  if (!parse_token("issue_operation", args[0], begun.token)) return nullptr;
  const long origin = PyLong_AsLong(args[1]);
  begun.address = static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLongMask(args[2]));
  if (PyErr_Occurred() != nullptr) return nullptr;
  begun.origin = static_cast<Origin>(origin);
  begun.is_on_cpu = args[3] == Py_True;
  if (!operation_issued(begun, args[4], false)) return nullptr;
  Py_RETURN_NONE;
}

PyObject* abort_operation_call(PyObject*, PyObject* object) {
  smon_token token;
  if (!parse_token("abort_operation", object, token)) return nullptr;
  abort_operation(token);
  Py_RETURN_NONE;
}

PyObject* end_awaited(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("end_awaited", count, 2)) return nullptr;
  const unsigned long long key = PyLong_AsUnsignedLongLong(args[0]);
  const long flags = PyLong_AsLong(args[1]);
  if (PyErr_Occurred() != nullptr) return nullptr;
  const smon_token token = take_awaited(static_cast<std::uintptr_t>(key));
  if (token != 0) end_operation(token, SMON_TIME_WAIT_RETURN, static_cast<std::uint16_t>(flags));
  Py_RETURN_NONE;
}

PyObject* end_awaited_at(PyObject*, PyObject* tensor) {
  const smon_token token = take_awaited_at(place_of(tensor));
  if (token != 0) end_operation(token, SMON_TIME_WAIT_RETURN, 0);
  Py_RETURN_NONE;
}

PyObject* has_addresses_call(PyObject*, PyObject*) {
  return PyBool_FromLong(has_addresses() ? 1 : 0);
}

PyObject* learn_files_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("learn_files", count, 3) || !learn_files(args[0], args[1], args[2])) return nullptr;
  Py_RETURN_NONE;
}

template <void (*function)()>
PyObject* without_arguments(PyObject*, PyObject*) {
  function();
  Py_RETURN_NONE;
}

/// A work that is kept goes with it: the last one of this thread, to which nobody will come back.
template <void (*function)()>
PyObject* with_last_work(PyObject*, PyObject*) {
  function();
  keep_last_work(nullptr);
  Py_RETURN_NONE;
}

bool is_send_of(long kind) {
  return kind == SMON_FORWARD_SEND || kind == SMON_BACKWARD_SEND;
}

PyObject* expect_transfer_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 5 && !has_arguments("expect_transfer", count, 4)) return nullptr;
  const long kind = PyLong_AsLong(args[1]);
  const long microbatch = PyLong_AsLong(args[2]);
  const long chunk = PyLong_AsLong(args[3]);
  const long long payload_bytes = count == 5 ? PyLong_AsLongLong(args[4]) : -1;
  if (PyErr_Occurred() != nullptr) return nullptr;
  const Label label{static_cast<int>(kind), static_cast<std::int16_t>(microbatch), static_cast<std::int16_t>(chunk),
                    payload_bytes};
  expect_transfer(place_of(args[0]), identity_of(args[0]), is_send_of(kind), label);
  Py_RETURN_NONE;
}

PyObject* take_transfer_call(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (!has_arguments("take_transfer", count, 2)) return nullptr;
  Label label;
  if (!has_transfers() || !take_transfer(place_of(args[0]), args[1] == Py_True, label)) Py_RETURN_NONE;
  return Py_BuildValue("(iii)", label.kind, static_cast<int>(label.microbatch), static_cast<int>(label.chunk));
}

[[gnu::hot]] PyObject* wait_for_work(const RecordedMethod& method, PyObject* const* args, std::size_t count_and_flag,
                                     PyObject* kwnames) {
  const bool has_work = PyVectorcall_NARGS(count_and_flag) > 0;
  smon_token token = 0;
  if (has_work && has_awaited())
    token = take_awaited(reinterpret_cast<std::uintptr_t>(args[0]), key_of_work_object(args[0]));
  PyObject* result = call_original(method, args, count_and_flag, kwnames);
  // This thread has waited for it, so its caller has got it.
  if (has_work && t_thread.last_work == args[0]) keep_last_work(nullptr);
  if (token == 0) return result;
  if (result != nullptr) {
    end_operation(token, SMON_TIME_WAIT_RETURN, 0);
  } else {
    abort_operation(token);
  }
  return result;
}

PyObject* recorded_wait(PyObject*, PyObject* original) {
  return make_method(wait_for_work, original);
}

template <typename Function>
PyCFunction as_method(Function function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_calls[] = {
    {"begin_operation", as_method(&begin_operation_call), METH_FASTCALL, "Begins an operation's span; see the stub."},
    {"issue_operation", as_method(&issue_operation), METH_FASTCALL, "It has been issued, with this work."},
    {"abort_operation", &abort_operation_call, METH_O, "It could not be issued."},
    {"end_awaited", as_method(&end_awaited), METH_FASTCALL, "The operation of this key is done."},
    {"end_awaited_at", &end_awaited_at, METH_O, "The operation whose result this tensor is has been waited for."},
    {"has_addresses", &has_addresses_call, METH_NOARGS, "Whether any operation is found by its result."},
    {"end_reductions", &without_arguments<&end_reductions>, METH_NOARGS, "The backward pass has returned."},
    {"end_unwaited", &with_last_work<&end_unwaited>, METH_NOARGS, "The step has ended."},
    {"end_all_operations", &with_last_work<&end_all_operations>, METH_NOARGS, "Recording stops."},
    {"expect_transfer", as_method(&expect_transfer_call), METH_FASTCALL, "What the next transfer of a tensor is."},
    {"take_transfer", as_method(&take_transfer_call), METH_FASTCALL, "What was expected, once."},
    {"clear_transfers", &without_arguments<&clear_transfers>, METH_NOARGS, "Forgets what did not come."},
    {"recorded_wait", &recorded_wait, METH_O, "What Work.wait becomes."},
    {"make_collective_hooks", as_method(&make_collective_hooks), METH_FASTCALL, "Hooks of one process group."},
    {"why_no_hook_functions", &why_no_hook_functions, METH_O, "Why torch cannot take functions of C++; see the stub."},
    {"make_hook_functions", &make_hook_functions, METH_O, "Such functions, of a group's hooks."},
    {"learn_torch", as_method(&learn_torch), METH_FASTCALL, "What hooks need to know of torch; see the stub."},
    {"know_layout", &know_layout, METH_NOARGS, "This torch is of a version whose layout in memory is known."},
    {"learn_files", as_method(&learn_files_call), METH_FASTCALL, "Files by which callers are told apart."},
    {"act_on_collectives", &act_on_collectives, METH_O, "Number of the recording that hooks act in, 0: none."},
    {"exchange_kinds", &exchange_kinds, METH_O, "Kinds of this thread's operations; returns those of before."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

const Names& names() {
  return g_names;
}

std::uintptr_t place_of(PyObject* tensor) {
  // A tensor without storage raises.
  const Reference address(PyObject_CallMethodNoArgs(tensor, g_names.data_ptr));
  std::uintptr_t place = 0;
  if (address) place = static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLongMask(address.get()));
  if (PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    place = 0;
  }
  return place != 0 ? place : reinterpret_cast<std::uintptr_t>(tensor);
}

PyMethodDef* collective_calls() {
  return g_calls;
}

bool set_up_collectives(PyObject* module) {
  g_names.nbytes = PyUnicode_InternFromString("nbytes");
  g_names.is_cpu = PyUnicode_InternFromString("is_cpu");
  g_names.data_ptr = PyUnicode_InternFromString("data_ptr");
  g_names.cdata = PyUnicode_InternFromString("_cdata");
  g_names.register_group = PyUnicode_InternFromString("register");
  return g_names.nbytes != nullptr && g_names.is_cpu != nullptr && g_names.data_ptr != nullptr &&
         g_names.cdata != nullptr && g_names.register_group != nullptr && set_up_hooks(module) &&
         set_up_methods(module);
}

}  // namespace smon_rt::bindings
