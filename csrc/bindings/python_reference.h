#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>

namespace smon_rt::bindings {

/// An owned reference to a Python object, or nullptr.
class Reference {
 public:
  Reference() = default;
  explicit Reference(PyObject* owned) : object_(owned) {}
  Reference(Reference&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Reference& operator=(Reference&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }
  ~Reference() { Py_XDECREF(object_); }

  PyObject* get() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }
  explicit operator bool() const { return object_ != nullptr; }

 private:
  PyObject* object_ = nullptr;
};

/// The error that is set, which is then no longer set.
inline Reference take_error() {
#if PY_VERSION_HEX >= 0x030C0000
  return Reference(PyErr_GetRaisedException());
#else
  PyObject* kind = nullptr;
  PyObject* error = nullptr;
  PyObject* traceback = nullptr;
  PyErr_Fetch(&kind, &error, &traceback);
  PyErr_NormalizeException(&kind, &error, &traceback);
  Py_XDECREF(kind);
  Py_XDECREF(traceback);
  return Reference(error);
#endif
}

/// Names of attributes of torch's objects, and of ours.
struct Names {
  PyObject* nbytes;
  PyObject* is_cpu;
  PyObject* data_ptr;
  PyObject* cdata;
  PyObject* register_group;
};
const Names& names();

/// Where a tensor's data is, or its identity if it has none: a view made on the way keeps the address. No error is set.
std::uintptr_t place_of(PyObject* tensor);
/// Which tensor of torch this object is; 0 if it is none. No error is set.
std::uintptr_t identity_of(PyObject* tensor);

}  // namespace smon_rt::bindings
