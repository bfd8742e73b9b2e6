#include "bindings/torch_layout.h"

#include <pybind11/pybind11.h>

#include <mutex>
#include <string_view>

#include "bindings/python_reference.h"
#include "bindings/torch_attributes.h"

namespace smon_rt::bindings {

namespace {

static_assert(sizeof(void*) != 8 || (offsetof(PreHookArgs, inputs) == 8 && offsetof(PreHookArgs, root) == 56 &&
                                     offsetof(PreHookArgs, op_id) == 64 && offsetof(PostHookArgs, work) == 8 &&
                                     offsetof(PostHookArgs, op_id) == 16));
static_assert(offsetof(BoundObject, value) == offsetof(pybind11::detail::instance, simple_value_holder));

/// How often attributes must have said the same, of each hook; and how many tensors and works must be among that.
constexpr int kNeeded = 16;
constexpr int kNeededObjects = 4;

/// What has been found so far. Types are owned for ever: their addresses must stay their own.
struct Proof {
  std::mutex lock;
  PyTypeObject* before = nullptr;
  PyTypeObject* after = nullptr;
  int before_count = 0, after_count = 0, tensor_count = 0, work_count = 0;
};

Proof& proof() {
  static Proof* const proof = new Proof;  // leaked: threads come here until the process is gone
  return *proof;
}

// Nothing is read before somebody has said that this is a version of torch whose layout is known.
std::atomic<bool> g_is_known{false};
// Both false while it is being decided.
std::atomic<bool> g_is_trusted{false};
std::atomic<bool> g_is_refused{false};

bool is_undecided() {
  return g_is_known.load(std::memory_order_relaxed) && !g_is_trusted.load(std::memory_order_relaxed) &&
         !g_is_refused.load(std::memory_order_relaxed);
}

void refuse() {
  g_is_refused.store(true, std::memory_order_relaxed);
  g_trusted_types.before.store(nullptr, std::memory_order_relaxed);
  g_trusted_types.after.store(nullptr, std::memory_order_relaxed);
}

/// Whether objects of this type begin as BoundObject does.
bool is_bound(PyObject* object) {
  const PyTypeObject* type = Py_TYPE(object);
  // The metaclass has a name of its own in each version's module.
  if (!std::string_view(Py_TYPE(type)->tp_name).ends_with("pybind11_type")) return false;
  if (type->tp_basicsize < static_cast<Py_ssize_t>(sizeof(pybind11::detail::instance))) return false;
  const auto* instance = reinterpret_cast<const pybind11::detail::instance*>(object);
  return instance->simple_layout && instance->simple_value_holder[0] != nullptr;
}

/// The type of all objects that were seen: another one's layout is not known.
bool is_same_type(PyTypeObject*& seen, PyObject* object) {
  if (seen == nullptr) {
    seen = Py_TYPE(object);
    Py_INCREF(seen);
  }
  return seen == Py_TYPE(object);
}

bool says(PyObject* getter, PyObject* args, long long expected) {
  long long value;
  return read_number(get(getter, args).get(), value) && value == expected;
}

/// 0: no tensors; 1: the first of them is where `args` says; -1: it is not.
int compare_tensor(PyObject* args, const PreHookArgs& read) {
  const Reference tensors = tensors_of(args);
  PyObject* tensor = first_of(tensors);
  if (tensor == nullptr) return tensors && read.first_tensor() == nullptr ? 0 : -1;
  return static_cast<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(read.first_tensor())) == identity_of(tensor) ? 1
                                                                                                                   : -1;
}

bool is_work_type(PyTypeObject* type) {
  for (const auto& known : g_trusted_types.works) {
    if (known.load(std::memory_order_acquire) == type) return true;
  }
  return false;
}

void learn_work_type(PyTypeObject* type) {
  for (auto& known : g_trusted_types.works) {
    if (known.load(std::memory_order_relaxed) != nullptr) continue;
    Py_INCREF(type);
    known.store(type, std::memory_order_release);
    return;
  }
}

/// 0: no work; 1: it is where `args` says; -1: it is not.
int compare_work(PyObject* args, const PostHookArgs& read) {
  const Reference work = get(torch().work, args);
  if (!work) return -1;
  if (work.get() == Py_None) return read.work == nullptr ? 0 : -1;
  if (!is_bound(work.get()) || reinterpret_cast<const BoundObject*>(work.get())->value != read.work) return -1;
  if (!is_work_type(Py_TYPE(work.get()))) learn_work_type(Py_TYPE(work.get()));
  return 1;
}

bool agrees_before(PyObject* args, int& tensor) {
  if (!is_bound(args)) return false;
  const auto& read = *static_cast<const PreHookArgs*>(reinterpret_cast<const BoundObject*>(args)->value);
  if (!says(torch().op_id, args, read.op_id) || !says(torch().root, args, read.root)) return false;
  const Reference name = get(torch().name, args);
  if (!name || !says(torch().name_value, name.get(), read.name)) return false;
  tensor = compare_tensor(args, read);
  return tensor >= 0;
}

bool agrees_after(PyObject* args, int& work) {
  if (!is_bound(args)) return false;
  const auto& read = *static_cast<const PostHookArgs*>(reinterpret_cast<const BoundObject*>(args)->value);
  if (!says(torch().post_op_id, args, read.op_id)) return false;
  const Reference is_async = get(torch().post_async_op, args);
  if (!is_async || (is_async.get() == Py_True) != read.is_async) return false;
  work = compare_work(args, read);
  return work >= 0;
}

void decide(const Proof& found) {
  if (found.before_count < kNeeded || found.after_count < kNeeded || found.tensor_count < kNeededObjects ||
      found.work_count < kNeededObjects)
    return;
  g_is_trusted.store(true, std::memory_order_relaxed);
  g_trusted_types.before.store(found.before, std::memory_order_release);
  g_trusted_types.after.store(found.after, std::memory_order_release);
}

}  // namespace

PyObject* know_layout(PyObject*, PyObject*) {
  g_is_known.store(true, std::memory_order_relaxed);
  Py_RETURN_NONE;
}

std::uintptr_t key_of_work_object(PyObject* work) {
  PyTypeObject* type = Py_TYPE(work);
  if (g_trusted_types.works[0].load(std::memory_order_acquire) == type || is_work_type(type)) [[likely]]
    return key_of_work(reinterpret_cast<const BoundObject*>(work)->value);
  // Its operation may be awaited by what torch has of it: from here on none is.
  if (g_is_trusted.load(std::memory_order_relaxed)) refuse();
  return 0;
}

void prove_before(PyObject* args) {
  if (!is_undecided()) return;
  int tensor = 0;
  const bool agrees = agrees_before(args, tensor);
  PyErr_Clear();
  Proof& found = proof();
  const std::lock_guard<std::mutex> guard(found.lock);
  if (!agrees || !is_same_type(found.before, args)) return refuse();
  ++found.before_count;
  found.tensor_count += tensor;
  decide(found);
}

void prove_after(PyObject* args) {
  if (!is_undecided()) return;
  int work = 0;
  const bool agrees = agrees_after(args, work);
  PyErr_Clear();
  Proof& found = proof();
  const std::lock_guard<std::mutex> guard(found.lock);
  if (!agrees || !is_same_type(found.after, args)) return refuse();
  ++found.after_count;
  found.work_count += work;
  decide(found);
}

}  // namespace smon_rt::bindings
