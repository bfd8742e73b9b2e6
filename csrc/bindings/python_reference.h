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

/// An attribute that may be missing, which raising and clearing an error would tell at ten times the cost; nullptr: it
/// is, or cannot be read. No error is set.
inline Reference optional_attribute(PyObject* object, PyObject* name) {
  PyObject* value = nullptr;
#if PY_VERSION_HEX >= 0x030D0000
  const int found = PyObject_GetOptionalAttr(object, name, &value);
#else
  const int found = _PyObject_LookupAttr(object, name, &value);
#endif
  if (found < 0) PyErr_Clear();
  return Reference(value);
}

/// Whether a weak reference is to that object.
inline bool is_referent(PyObject* reference, PyObject* object) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* referent = nullptr;
  if (PyWeakref_GetRef(reference, &referent) < 0) PyErr_Clear();
  return Reference(referent).get() == object;
#else
  return PyWeakref_GET_OBJECT(reference) == object;
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
/// Which tensor of torch this object is; 0 if it is none. No error is set. Read in its memory (torch_layout.cc) once
/// sixteen have said there what their attribute says.
std::uintptr_t identity_of(PyObject* tensor);

}  // namespace smon_rt::bindings
