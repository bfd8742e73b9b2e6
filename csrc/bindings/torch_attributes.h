#pragma once

#include <Python.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "bindings/python_reference.h"
#include "bindings/torch_caller.h"
#include "bindings/torch_layout.h"

// What hooks read of the objects that torch hands to them. Their attributes are costly (`name` takes a microsecond), so
// only what is needed is read, and what a call site of torch's own file issues is read once.

namespace smon_rt::bindings {

/// What an operation of torch's HookOpName is.
struct Operation {
  bool is_known = false;
  bool is_p2p = false;
  bool is_send = false;
  std::uint8_t reduces_to = 0;  // the kind that it has when it reduces gradients, 0 if it cannot

  bool operator==(const Operation&) const = default;
};
inline constexpr std::size_t kMaxOperations = 64;
inline constinit std::array<Operation, kMaxOperations> g_operations{};

/// Functions that hand over an attribute of the hooks' arguments, and what Python does. Set once, never changed after.
struct Torch {
  PyObject* op_id = nullptr;
  PyObject* name = nullptr;
  PyObject* name_value = nullptr;
  PyObject* input_tensors = nullptr;
  PyObject* output_tensors = nullptr;
  PyObject* root = nullptr;
  PyObject* post_op_id = nullptr;
  PyObject* post_async_op = nullptr;
  PyObject* work = nullptr;
  PyObject* graph_task = nullptr;     // torch._C._current_graph_task_id
  PyObject* are_gradients = nullptr;  // (tensors) → whether these are a parameter's, after the backward pass
  PyObject* reduction_began = nullptr;
  PyObject* end_with_future = nullptr;  // (key, work)
  PyObject* failed = nullptr;           // (error)
  PyObject* dropped = nullptr;          // the callback of weak references
};
Torch& torch();

/// Calls a function that hands over an attribute.
Reference get(PyObject* getter, PyObject* object);
/// An int of Python, or nullptr, which it may be. False: an exception is set.
bool read_number(PyObject* object, long long& value);
/// Number of HookOpName, and what it is: not known, perhaps. `read`: the same arguments where torch has them, or
/// nullptr. False: an exception is set.
bool read_operation(PyObject* args, const PreHookArgs* read, const Caller& caller, std::size_t& number,
                    Operation& operation);
/// What that number is; nullptr: nothing is.
inline const Operation* find_operation(std::size_t number) {
  return number < kMaxOperations ? &g_operations[number] : nullptr;
}
/// Whether this thread runs a backward pass. False: an exception is set.
bool read_is_in_backward(bool& is_in_backward);
/// Tensors that go in, else those that come out: a list, or nullptr with an exception set.
Reference tensors_of(PyObject* args);
/// The first of a list; borrowed, nullptr if there is none.
PyObject* first_of(const Reference& tensors);

/// What hooks need of torch, and of Python: see learn_torch() in _runtime.pyi.
PyObject* learn_torch(PyObject* module, PyObject* const* args, Py_ssize_t count);

}  // namespace smon_rt::bindings
