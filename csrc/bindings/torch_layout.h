#pragma once

#include <Python.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

// What torch hands to hooks, read where torch keeps it. An attribute that is read as Python does it runs some hundred
// instructions of torch, which the processor has to fetch each time, since a step runs millions of others in between.
//
// The layout is that of torch 2.15 and of pybind11 since 2.2; of another torch nothing is read. It is believed only
// after the attributes of the first operations have said the same; once one does not, it never is, and attributes are
// read. Only types that were seen then are read so.

// Named as torch's own, and nothing of torch is included: hook_functions.h says what for.
namespace c10d {

/// Of vectors of tensors: begin, end, capacity; a tensor is a pointer.
struct PreHookArgs {
  std::uint8_t name;
  bool is_async;
  void* const* inputs[3];
  void* const* outputs[3];
  std::int64_t root;
  std::int64_t op_id;

  /// The first of those that go in, else of those that come out; nullptr if there is none.
  void* first_tensor() const {
    if (inputs[0] != inputs[1]) return *inputs[0];
    return outputs[0] != outputs[1] ? *outputs[0] : nullptr;
  }
};

struct PostHookArgs {
  std::uint8_t name;
  bool is_async;
  void* work;  // nullptr: none
  std::int64_t op_id;
};

}  // namespace c10d

namespace smon_rt::bindings {

using c10d::PostHookArgs;
using c10d::PreHookArgs;

/// How an object of pybind11 begins.
struct BoundObject {
  PyObject_HEAD void* value;
};

/// Types whose objects are read so; nullptr as long as they are not. Those of works too.
struct alignas(64) TrustedTypes {
  std::atomic<PyTypeObject*> before{nullptr};
  std::atomic<PyTypeObject*> after{nullptr};
  std::array<std::atomic<PyTypeObject*>, 4> works{};
};
inline constinit TrustedTypes g_trusted_types;

/// nullptr: not to be read so.
template <typename Value>
const Value* read_as(PyObject* object, const std::atomic<PyTypeObject*>& type) {
  if (Py_TYPE(object) != type.load(std::memory_order_acquire)) return nullptr;
  return static_cast<const Value*>(reinterpret_cast<const BoundObject*>(object)->value);
}
/// Whether the arguments of each hook lie in memory as they are declared here.
[[gnu::always_inline]] inline bool is_before_trusted() {
  return g_trusted_types.before.load(std::memory_order_acquire) != nullptr;
}
[[gnu::always_inline]] inline bool is_after_trusted() {
  return g_trusted_types.after.load(std::memory_order_acquire) != nullptr;
}

inline const PreHookArgs* read_before(PyObject* args) {
  return read_as<PreHookArgs>(args, g_trusted_types.before);
}
inline const PostHookArgs* read_after(PyObject* args) {
  return read_as<PostHookArgs>(args, g_trusted_types.after);
}

/// Key of a work in the table of what is awaited, by what torch has of it: no object of Python is there.
inline std::uintptr_t key_of_work(const void* work) {
  return reinterpret_cast<std::uintptr_t>(work) | 1;
}
/// The same of its object of Python; 0: such objects are not read so.
std::uintptr_t key_of_work_object(PyObject* work);

/// For Python: this torch is of a version whose layout is known, so it may be compared.
PyObject* know_layout(PyObject*, PyObject*);

/// Compares what is read so with what the attributes say, until that is decided. No error is set.
void prove_before(PyObject* args);
void prove_after(PyObject* args);

}  // namespace smon_rt::bindings
