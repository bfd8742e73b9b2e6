#include "bindings/torch_caller.h"

#include <frameobject.h>

#include <array>
#include <mutex>

namespace smon_rt::bindings {

namespace {

/// Frames between a hook in the backward pass and c10d: logging wrappers, the hook itself, its helpers.
constexpr int kMaxFrames = 24;

struct File {
  PyObject* path = nullptr;  // owned, so that its address stays its own
  Origin origin = Origin::kCpp;
};

struct Site {
  PyObject* code = nullptr;  // owned
  int instruction = -1;
  std::size_t operation = 0;
};

// Code of one file shares the object that is its path, so the address most often finds it. Full: it is looked up.
struct Known {
  std::mutex lock;
  std::array<File, 16> files;
  std::array<Site, 64> sites;
  PyObject* origins = nullptr;  // dict
  PyObject* engine_file = nullptr;
  PyObject* function_file = nullptr;
};

Known& known() {
  static Known* const known = new Known;  // leaked: threads come here until the process is gone
  return *known;
}

PyObject* path_of(PyObject* code) {
  return reinterpret_cast<PyCodeObject*>(code)->co_filename;
}

Origin find_origin(PyObject* path) {
  Known& all = known();
  PyObject* origins = nullptr;
  {
    const std::lock_guard<std::mutex> guard(all.lock);
    for (const File& file : all.files) {
      if (file.path == path) return file.origin;
      if (file.path == nullptr) break;
    }
    origins = all.origins;
  }
  Origin origin = Origin::kCpp;
  if (origins != nullptr) {
    PyObject* number = PyDict_GetItemWithError(origins, path);  // of a dict that nobody changes
    if (number != nullptr) origin = static_cast<Origin>(PyLong_AsLong(number));
    PyErr_Clear();
  }
  const std::lock_guard<std::mutex> guard(all.lock);
  for (File& file : all.files) {
    if (file.path == path) break;
    if (file.path != nullptr) continue;
    Py_INCREF(path);
    file = {path, origin};
    break;
  }
  return origin;
}

bool is_file(PyObject* path, PyObject* other) {
  return other != nullptr && (path == other || PyUnicode_Compare(path, other) == 0);
}

std::size_t place(PyObject* code, int instruction) {
  return ((reinterpret_cast<std::uintptr_t>(code) >> 4) + static_cast<std::size_t>(instruction)) % 64;
}

}  // namespace

Caller::Caller() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return;
  Py_INCREF(frame);
  frame_ = Reference(reinterpret_cast<PyObject*>(frame));
  code_ = Reference(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
#if PY_VERSION_HEX >= 0x030B0000
  instruction_ = PyFrame_GetLasti(frame);
#else
  instruction_ = frame->f_lasti;
#endif
  origin_ = find_origin(path_of(code_.get()));
}

bool Caller::is_called_by_hook() const {
  auto* frame = reinterpret_cast<PyFrameObject*>(frame_.get());
  PyObject* engine_file = nullptr;
  PyObject* function_file = nullptr;
  {
    const std::lock_guard<std::mutex> guard(known().lock);
    engine_file = known().engine_file;
    function_file = known().function_file;
  }
  Reference held;
  for (int i = 0; i < kMaxFrames && frame != nullptr; ++i) {
    held = Reference(reinterpret_cast<PyObject*>(PyFrame_GetBack(frame)));
    frame = reinterpret_cast<PyFrameObject*>(held.get());
    if (frame == nullptr) return true;  // on a thread of the engine
    const Reference code(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    PyObject* path = path_of(code.get());
    if (is_file(path, function_file)) return false;
    if (is_file(path, engine_file)) return true;
  }
  return false;
}

bool learn_files(PyObject* origins, PyObject* engine_file, PyObject* function_file) {
  if (!PyDict_Check(origins) || !PyUnicode_Check(engine_file) || !PyUnicode_Check(function_file)) {
    PyErr_SetString(PyExc_TypeError, "learn_files() takes a dict and two paths");
    return false;
  }
  Known& all = known();
  Py_INCREF(origins);
  Py_INCREF(engine_file);
  Py_INCREF(function_file);
  const std::lock_guard<std::mutex> guard(all.lock);
  // What was there before is kept alive: another thread may be reading it.
  all.origins = origins;
  all.engine_file = engine_file;
  all.function_file = function_file;
  all.files = {};
  return true;
}

bool known_operation(const Caller& caller, std::size_t& operation) {
  if (caller.origin() != Origin::kPython) return false;
  Known& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  const Site& site = all.sites[place(caller.code(), caller.instruction())];
  if (site.code != caller.code() || site.instruction != caller.instruction()) return false;
  operation = site.operation;
  return true;
}

void learn_operation(const Caller& caller, std::size_t operation) {
  if (caller.origin() != Origin::kPython) return;
  Known& all = known();
  const std::lock_guard<std::mutex> guard(all.lock);
  Site& site = all.sites[place(caller.code(), caller.instruction())];
  if (site.code != nullptr) return;  // of another site: this one's is read each time
  Py_INCREF(caller.code());
  site = {caller.code(), caller.instruction(), operation};
}

}  // namespace smon_rt::bindings
