#include "bindings/hook_functions.h"

#include <pybind11/pybind11.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "bindings/collective_hooks.h"
#include "bindings/collective_issue.h"
#include "bindings/python_reference.h"
#include "bindings/thread_state.h"
#include "bindings/torch_attributes.h"
#include "bindings/torch_layout.h"

namespace py = pybind11;

namespace smon_rt::bindings {

namespace {

constexpr std::size_t kMaxGroups = 128;

/// Owned for ever: torch has no way to say that it has done with a function.
constinit std::array<std::atomic<Hooks*>, kMaxGroups> g_groups{};

bool is_python_ending() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0 || Py_IsInitialized() == 0;
#else
  return _Py_IsFinalizing() != 0 || Py_IsInitialized() == 0;
#endif
}

/// As the threads of torch take it.
class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

/// torch's object of Python for arguments that lie there; nullptr with an exception set. Not to be kept.
template <typename Args>
Reference object_of(const Args& args) {
  try {
    const py::detail::type_info* type = py::detail::get_type_info(typeid(Args));
    if (type != nullptr) {
      return Reference(
          py::detail::type_caster_generic::cast(&args, py::return_value_policy::reference, {}, type, nullptr, nullptr)
              .ptr());
    }
    PyErr_SetString(PyExc_TypeError, "torch has no object for the arguments of hooks");
  } catch (const std::exception& error) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return Reference(nullptr);
}

/// An interrupt, which must reach the job, and may not be thrown through torch: this thread raises it as soon as it is
/// in Python again.
void raise_later() {
  const Reference error = take_error();
  if (error) PyThreadState_SetAsyncExc(PyThread_get_thread_ident(), reinterpret_cast<PyObject*>(Py_TYPE(error.get())));
}

/// Has Python do something with the arguments. Nothing of it reaches torch.
template <typename Args, typename Function>
[[gnu::noinline]] void with_python(const Args& args, Function&& function) {
  const Gil gil;
  if (torch().failed == nullptr) return;
  const Reference object = object_of(args);
  const bool is_done = object && function(object.get());
  if (!is_done && !swallow_error()) raise_later();
}

[[gnu::hot]] void before(Hooks& hooks, const PreHookArgs& args) {
  const std::uint32_t recording = g_counts.recording.load(std::memory_order_relaxed);
  if (recording == 0 || (is_before_trusted() && begin_transfer(hooks, args, recording)) || is_python_ending()) return;
  with_python(args, [&](PyObject* object) { return begin_any(hooks, object, recording); });
}

[[gnu::hot]] void after(Hooks& hooks, const PostHookArgs& args) {
  if (t_thread.issued.begun.token == 0 && !has_issued()) {
    if (has_awaited() && is_after_trusted()) issued_unseen(args);
    return;
  }
  if (!is_after_trusted()) {
    if (!is_python_ending()) with_python(args, [&](PyObject* object) { return issued_unread(hooks, object); });
    return;
  }
  const Begun begun = take_from_thread(hooks, args.op_id);
  if (begun.token == 0) {
    issued_unseen(args);
  } else if (begun.is_read) {
    issued_read(begun, args);
  } else if (is_python_ending()) {
    abort_operation(begun.token);
  } else {
    with_python(args, [&](PyObject* object) { return issued_any(begun, object); });
  }
}

template <std::size_t place>
void before_in(const PreHookArgs& args) {
  before(*g_groups[place].load(std::memory_order_acquire), args);
}

template <std::size_t place>
void after_in(const PostHookArgs& args) {
  after(*g_groups[place].load(std::memory_order_acquire), args);
}

struct Functions {
  void (*before)(const PreHookArgs&);
  void (*after)(const PostHookArgs&);
};
template <std::size_t... places>
constexpr std::array<Functions, sizeof...(places)> make_pool(std::index_sequence<places...>) {
  return {Functions{&before_in<places>, &after_in<places>}...};
}
constexpr std::array<Functions, kMaxGroups> kPool = make_pool(std::make_index_sequence<kMaxGroups>());

/// Its place in the pool, which it has for ever; kMaxGroups: there is none left.
std::size_t place_of_group(Hooks* hooks) {
  static std::mutex lock;
  const std::lock_guard<std::mutex> guard(lock);
  for (std::size_t place = 0; place < kMaxGroups; ++place) {
    Hooks* known = g_groups[place].load(std::memory_order_relaxed);
    if (known == hooks) return place;
    if (known != nullptr) continue;
    Py_INCREF(reinterpret_cast<PyObject*>(hooks));
    g_groups[place].store(hooks, std::memory_order_release);
    return place;
  }
  return kMaxGroups;
}

/// What pybind11 keeps of a function; nullptr: it is not one of pybind11's.
PyObject* record_of(PyObject* function) {
  if (PyInstanceMethod_Check(function)) function = PyInstanceMethod_GET_FUNCTION(function);
  return PyCFunction_Check(function) ? PyCFunction_GET_SELF(function) : nullptr;
}

const char* why_not(PyObject* of_torch) {
  const py::cpp_function ours(kPool[0].before);
  const PyObject* own = record_of(ours.ptr());
  const PyObject* other = record_of(of_torch);
  // The type's name has the version of the record in it, the compiler and its library: pybind11 asks for no more.
  if (own == nullptr || other == nullptr || std::strcmp(Py_TYPE(own)->tp_name, Py_TYPE(other)->tp_name) != 0)
    return "torch is built with another pybind11";
  if (std::strstr(Py_TYPE(own)->tp_name, "function_record") == nullptr) return "pybind11 keeps functions in capsules";
  // Then they share the types that torch has registered, too, by their names.
  if (py::detail::get_type_info(typeid(PreHookArgs)) == nullptr ||
      py::detail::get_type_info(typeid(PostHookArgs)) == nullptr)
    return "torch has other arguments for hooks";
  return "";
}

}  // namespace

PyObject* why_no_hook_functions(PyObject*, PyObject* object) {
  try {
    return PyUnicode_FromString(why_not(object));
  } catch (const std::exception& error) {
    PyErr_Clear();
    return PyUnicode_FromString(error.what());
  }
}

PyObject* make_hook_functions(PyObject*, PyObject* hook) {
  Hooks* hooks = hooks_of(hook);
  if (hooks == nullptr) {
    PyErr_SetString(PyExc_TypeError, "make_hook_functions() takes the first of make_collective_hooks()");
    return nullptr;
  }
  const std::size_t place = place_of_group(hooks);
  if (place == kMaxGroups) Py_RETURN_NONE;
  try {
    return py::make_tuple(py::cpp_function(kPool[place].before), py::cpp_function(kPool[place].after)).release().ptr();
  } catch (const std::exception& error) {
    if (PyErr_Occurred() == nullptr) PyErr_SetString(PyExc_RuntimeError, error.what());
    return nullptr;
  }
}

}  // namespace smon_rt::bindings
