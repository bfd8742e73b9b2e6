#include "bindings/tensor_addresses.h"

#include <pybind11/stl.h>

#include <utility>

namespace py = pybind11;

namespace smon_rt::bindings {
namespace {

PyObject* interned(const char* text) {
  PyObject* name = PyUnicode_InternFromString(text);
  if (name == nullptr) throw py::error_already_set();
  return name;
}

// Kept for good: names of the process.
struct TensorNames {
  PyObject* data_ptr = interned("data_ptr");
  PyObject* numel = interned("numel");
  PyObject* local_tensor = interned("_local_tensor");
};

const TensorNames& tensor_names() {
  static const TensorNames names;
  return names;
}

Reference shared(py::handle object) {
  return Reference(object.inc_ref().ptr());
}

/// What a method without arguments returns as a number; false: it raised, and no error is set.
bool ask(PyObject* tensor, PyObject* method, std::uint64_t& number) {
  const Reference answer(PyObject_CallMethodNoArgs(tensor, method));
  number = answer ? PyLong_AsUnsignedLongLong(answer.get()) : 0;
  if (answer && PyErr_Occurred() == nullptr) [[likely]]
    return true;
  PyErr_Clear();
  return false;
}

}  // namespace

TensorAddresses::TensorAddresses(const py::list& entries, const py::list& sizes, std::vector<std::uint64_t> addresses)
    : addresses_(std::move(addresses)) {
  entries_.reserve(entries.size());
  for (const py::handle item : entries) {
    const auto tuple = item.cast<py::tuple>();
    if (tuple.size() != 5 || !py::isinstance<py::dict>(tuple[0])) throw py::type_error("an entry begins with a dict");
    Entry entry;
    entry.container = shared(tuple[0]);
    entry.key = shared(tuple[1]);
    entry.tensor = shared(tuple[2]);
    if (!tuple[3].is_none()) entry.local = shared(tuple[3]);
    PyObject* own = entry.local ? entry.local.get() : entry.tensor.get();
    std::uint64_t element_count = 0;
    if (!ask(own, tensor_names().data_ptr, entry.address) || !ask(own, tensor_names().numel, element_count))
      throw py::type_error("an entry has no tensor");
    entry.element_count = static_cast<std::int64_t>(element_count);
    entries_.push_back(std::move(entry));
  }
  sizes_.reserve(sizes.size());
  for (const py::handle item : sizes) {
    const auto pair = item.cast<std::pair<py::object, Py_ssize_t>>();
    sizes_.push_back(Size{shared(pair.first), pair.second});
  }
}

bool TensorAddresses::is_where_it_was(const Entry& entry) const {
  // Borrowed; no error where it is missing.
  if (PyDict_GetItemWithError(entry.container.get(), entry.key.get()) != entry.tensor.get()) {
    PyErr_Clear();
    return false;
  }
  PyObject* own = entry.tensor.get();
  if (entry.local) {
    const Reference local = optional_attribute(own, tensor_names().local_tensor);
    if (local.get() != entry.local.get()) return false;
    own = entry.local.get();
  }
  std::uint64_t address = 0;
  std::uint64_t element_count = 0;
  return ask(own, tensor_names().data_ptr, address) && address == entry.address &&
         ask(own, tensor_names().numel, element_count) &&
         element_count == static_cast<std::uint64_t>(entry.element_count);
}

bool TensorAddresses::is_unchanged() const {
  for (const Size& size : sizes_) {
    const Py_ssize_t length = PyObject_Size(size.container.get());
    if (length < 0) PyErr_Clear();
    if (length != size.length) return false;
  }
  for (const Entry& entry : entries_) {
    if (!is_where_it_was(entry)) return false;
  }
  return true;
}

void add_tensor_addresses(py::module_& module) {
  py::class_<TensorAddresses>(module, "TensorAddresses")
      .def(py::init<const py::list&, const py::list&, std::vector<std::uint64_t>>(), py::arg("entries"),
           py::arg("sizes"), py::arg("addresses"))
      .def("is_unchanged", &TensorAddresses::is_unchanged)
      .def("set", &TensorAddresses::set, py::arg("range_index"), py::arg("address"))
      .def("addresses", [](const TensorAddresses& self) {
        return std::vector<std::uint64_t>(self.addresses().begin(), self.addresses().end());
      });
}

}  // namespace smon_rt::bindings
