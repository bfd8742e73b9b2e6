#pragma once

#include <Python.h>

#include <atomic>

#include "bindings/python_reference.h"

// What the hooks of all integrations look at in each step, of the process, and in one line of memory. Python sees it as
// `switch` in integrations/state.py, and sets what is decided there.

namespace smon_rt::bindings {

/// Written by any thread, most of it by the one that trains; each value stands for itself.
struct alignas(64) HookState {
  std::atomic<bool> is_on{false};                    // hooks act
  std::atomic<bool> is_stepped_by_script{false};     // the script says its steps itself
  std::atomic<bool> is_stepped_by_framework{false};  // a framework's own loop does
  std::atomic<bool> is_counting_steps{false};        // nobody does: hooks have begun to
  std::atomic<bool> must_discover{false};            // the job is to be asked where this process is
  std::atomic<bool> is_looking_for_models{false};    // outermost modules are being found
  std::atomic<bool> is_end_awaited{false};           // the engine will say when this backward pass has computed all
  std::atomic<bool> must_look{false};                // a backward pass has ended, and no optimizer has stepped since
  std::atomic<int> recording{0};                     // counts the recordings of this process
  // Of the current step: calls of outermost models, recorded or not, and passes of plain models.
  std::atomic<int> models{0};
  std::atomic<int> forwards{0};
  std::atomic<int> backwards{0};
  std::atomic<long long> step{-1};            // the one that has begun last, recorded or not; -1: none
  std::atomic<long long> ended_steps{0};      // how many have ended
  std::atomic<long long> backward_passes{0};  // how many have ended
};
static_assert(sizeof(HookState) == 64);
inline constinit HookState g_hooks;

template <typename Value>
[[gnu::always_inline]] inline Value get(const std::atomic<Value>& value) {
  return value.load(std::memory_order_relaxed);
}
template <typename Value, typename Given>
[[gnu::always_inline]] inline void set(std::atomic<Value>& value, Given given) {
  value.store(static_cast<Value>(given), std::memory_order_relaxed);
}
/// Counts on, by one thread at a time: another one's count may be lost, which nothing relies on.
template <typename Value>
void count_on(std::atomic<Value>& value) {
  set(value, get(value) + 1);
}

/// Something of Python that C calls seldom. Set when its module is loaded, and kept for ever.
class Callback {
 public:
  void learn(PyObject* function) {
    Py_INCREF(function);
    function_.store(function, std::memory_order_release);
  }
  /// Calls it, if it is known; nullptr: an exception is set, or nothing is known.
  template <typename... Args>
  Reference operator()(Args... args) const {
    PyObject* function = get();
    if (function == nullptr) return Reference();
    return Reference(PyObject_CallFunctionObjArgs(function, args..., nullptr));
  }
  PyObject* get() const { return function_.load(std::memory_order_acquire); }

 private:
  std::atomic<PyObject*> function_{nullptr};
};

/// A list of Python's that hooks are put into. Most often it is empty, which is all that is asked.
class HookList {
 public:
  void learn(PyObject* list) {
    Py_INCREF(list);
    list_.store(list, std::memory_order_release);
  }
  bool has_any() const {
    PyObject* list = list_.load(std::memory_order_acquire);
    return list != nullptr && PyList_GET_SIZE(list) > 0;
  }
  /// The hook that is in it alone; nullptr: there is none, or several.
  Reference only() const {
    PyObject* list = list_.load(std::memory_order_acquire);
    if (list == nullptr || PyList_GET_SIZE(list) != 1) return Reference();
#if PY_VERSION_HEX >= 0x030D0000
    Reference hook(PyList_GetItemRef(list, 0));
    if (!hook) PyErr_Clear();  // another thread has taken it out
    return hook;
#else
    PyObject* hook = PyList_GET_ITEM(list, 0);
    Py_INCREF(hook);
    return Reference(hook);
#endif
  }

 private:
  std::atomic<PyObject*> list_{nullptr};
};

/// What failed in a hook of ours goes no further, an interrupt excepted: said once, under this name, by Python's
/// `failed` of integrations/state.py. False: the error is to reach the job, and still set. True if there is none.
bool swallow_failure(const char* where);

/// The same object for Python. A new reference, nullptr with an exception set.
PyObject* make_hook_state(PyObject* module);

}  // namespace smon_rt::bindings
