// Attributes of what torch hands to hooks are costly (its `name` takes a microsecond), so only what is needed is read,
// and what a call site of torch's own file issues is read once. Reductions of gradients: see gradients.py.

#include "bindings/collective_issue.h"

#include "bindings/hook_state.h"
#include "bindings/thread_state.h"
#include "bindings/transfer_labels.h"

namespace smon_rt::bindings {

namespace {

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

bool find_transfer(Issue& issue) {
  long long root;
  if (issue.read != nullptr) {
    root = issue.read->root;
  } else if (!read_number(get(torch().root, issue.args).get(), root)) {
    return false;
  }
  issue.ids.peer = issue.hooks->member(root);
  PyObject* tensor = first_of(issue.tensors);
  Label label;
  if (tensor != nullptr && has_transfers() && take_transfer(place_of(tensor), issue.operation.is_send, label)) {
    issue.kind = label.kind;
    issue.ids.microbatch = label.microbatch;
    issue.ids.chunk = label.chunk;
  } else if (t_thread.kinds == nullptr) {
    issue.kind = direction(issue.hooks->rank, issue.ids.peer, issue.operation.is_send);
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
  } else if (get(g_hooks.must_look) && issue.caller.origin() == Origin::kPython) {
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
  issue.kind = said_kind(issue.number);
  if (issue.operation.is_p2p) return find_transfer(issue);
  return t_thread.kinds != nullptr || issue.operation.reduces_to == 0 || find_reduction(issue);
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

}  // namespace

int direction(std::int32_t rank, std::int32_t peer, bool is_send) {
  const bool is_forward = is_send ? rank < peer : peer < rank;
  if (is_forward) return is_send ? SMON_FORWARD_SEND : SMON_FORWARD_RECV;
  return is_send ? SMON_BACKWARD_SEND : SMON_BACKWARD_RECV;
}

int said_kind(std::size_t number) {
  PyObject* kinds = t_thread.kinds;
  if (kinds == nullptr || number >= static_cast<std::size_t>(PyBytes_GET_SIZE(kinds))) return SMON_COLLECTIVE;
  return static_cast<unsigned char>(PyBytes_AS_STRING(kinds)[number]);
}

bool find_out(Issue& issue, std::uint32_t recording) {
  if (!read_operation(issue.args, issue.read, issue.caller, issue.number, issue.operation)) return false;
  if (!issue.operation.is_known) return true;
  // In a step that is not sampled nobody reads how much was sent.
  const bool is_sampled = smon_is_sampled() != 0;
  if (is_sampled || issue.caller.origin() != Origin::kPython || (issue.operation.is_p2p && has_transfers())) {
    issue.tensors = tensors_of(issue.args);
    if (!issue.tensors) return false;
  }
  if (!find_communicator(issue, recording) || !find_kind(issue) || !find_result(issue)) return false;
  if (is_sampled && !add_bytes(issue.tensors, issue.ids.payload_bytes)) return false;
  issue.begun.is_unsampled = issue.read != nullptr && !is_sampled && issue.begun.origin == Origin::kPython;
  issue.begun.is_read = issue.begun.is_unsampled;
  if (issue.read == nullptr) return read_number(get(torch().op_id, issue.args).get(), issue.op_id);
  issue.op_id = issue.read->op_id;
  return true;
}

}  // namespace smon_rt::bindings
