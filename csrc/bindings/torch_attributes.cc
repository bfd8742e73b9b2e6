#include "bindings/torch_attributes.h"

namespace smon_rt::bindings {

Torch& torch() {
  static constinit Torch torch;
  return torch;
}

Reference get(PyObject* getter, PyObject* object) {
  return Reference(PyObject_CallOneArg(getter, object));
}

bool read_number(PyObject* object, long long& value) {
  value = object == nullptr ? -1 : PyLong_AsLongLong(object);
  return object != nullptr && !(value == -1 && PyErr_Occurred() != nullptr);
}

bool read_operation(PyObject* args, const PreHookArgs* read, const Caller& caller, std::size_t& number,
                    Operation& operation) {
  if (read != nullptr) {
    number = read->name;
    if (number >= kMaxOperations) return true;
  } else if (!known_operation(caller, number)) {
    const Reference name = get(torch().name, args);
    if (!name) return false;
    long long value;
    if (!read_number(get(torch().name_value, name.get()).get(), value)) return false;
    operation = {};
    number = static_cast<std::size_t>(value);
    if (number >= kMaxOperations) return true;
    learn_operation(caller, number);
  }
  operation = g_operations[number];
  return true;
}

bool read_is_in_backward(bool& is_in) {
  is_in = false;
  if (torch().graph_task == Py_None) return true;
  long long task;
  if (!read_number(Reference(PyObject_CallNoArgs(torch().graph_task)).get(), task)) return false;
  is_in = task != -1;
  return true;
}

Reference tensors_of(PyObject* args) {
  Reference tensors = get(torch().input_tensors, args);
  if (!tensors || !PyList_Check(tensors.get()) || PyList_GET_SIZE(tensors.get()) != 0) return tensors;
  return get(torch().output_tensors, args);
}

PyObject* first_of(const Reference& tensors) {
  if (!tensors || !PyList_Check(tensors.get()) || PyList_GET_SIZE(tensors.get()) == 0) return nullptr;
  return PyList_GET_ITEM(tensors.get(), 0);
}

PyObject* learn_torch(PyObject*, PyObject* const* args, Py_ssize_t count) {
  static constexpr std::array kSlots = {&Torch::op_id,           &Torch::name,           &Torch::name_value,
                                        &Torch::input_tensors,   &Torch::output_tensors, &Torch::root,
                                        &Torch::post_op_id,      &Torch::post_async_op,  &Torch::work,
                                        &Torch::graph_task,      &Torch::are_gradients,  &Torch::reduction_began,
                                        &Torch::end_with_future, &Torch::failed};
  if (count != static_cast<Py_ssize_t>(kSlots.size()) + 1 || !PyDict_Check(args[0])) {
    PyErr_SetString(PyExc_TypeError, "learn_torch() takes a dict of operations and what its stub says");
    return nullptr;
  }
  PyObject* key;
  PyObject* value;
  for (Py_ssize_t at = 0; PyDict_Next(args[0], &at, &key, &value) != 0;) {
    int is_p2p, is_send, reduces_to;
    const long number = PyLong_AsLong(key);
    if (number < 0 || !PyArg_ParseTuple(value, "ppi", &is_p2p, &is_send, &reduces_to)) {
      return PyErr_Occurred() != nullptr ? nullptr : PyErr_Format(PyExc_ValueError, "operation %ld", number);
    }
    if (number >= static_cast<long>(kMaxOperations)) continue;
    const Operation learnt{true, is_p2p != 0, is_send != 0, static_cast<std::uint8_t>(reduces_to)};
    // Hooks that are there already read it without a lock: what they know is not written again.
    Operation& known = g_operations[static_cast<std::size_t>(number)];
    if (known != learnt) known = learnt;
  }
  for (std::size_t i = 0; i < kSlots.size(); ++i) {
    Py_INCREF(args[i + 1]);
    torch().*kSlots[i] = args[i + 1];  // what was there stays alive: another thread may be calling it
  }
  Py_RETURN_NONE;
}

}  // namespace smon_rt::bindings
