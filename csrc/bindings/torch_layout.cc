#include "bindings/torch_layout.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string_view>

#include "bindings/python_reference.h"
#include "bindings/short_lock.h"
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

/// By its attribute.
std::uintptr_t asked_identity(PyObject* tensor) {
  const Reference address(PyObject_GetAttr(tensor, names().cdata));
  std::uintptr_t identity = 0;
  if (address) identity = static_cast<std::uintptr_t>(PyLong_AsUnsignedLongLongMask(address.get()));
  if (PyErr_Occurred() == nullptr) return identity;
  PyErr_Clear();
  return 0;
}

/// Where objects of torch's tensor type have what their attribute `_cdata` says.
struct TensorWord {
  std::atomic<PyTypeObject*> type{nullptr};  // nullptr: not known; release, after the place
  std::atomic<std::uint32_t> place{0};
};
constinit TensorWord g_tensor_word;

/// Which words of tensors have said the same as the attribute, each time.
struct TensorProof {
  ShortLock lock;
  PyTypeObject* type = nullptr;  // owned for ever
  std::uint64_t places = ~std::uint64_t{0};
  std::uintptr_t last_identity = 0;
  int count = 0;
};
constinit TensorProof g_tensor_proof;

std::uintptr_t word_of(PyObject* object, std::uint32_t place) {
  return reinterpret_cast<const std::uintptr_t*>(object)[place];
}

/// Of the words after the object's head, those that are its identity: a bit each.
std::uint64_t places_of(PyObject* tensor, std::uintptr_t identity) {
  const auto size = static_cast<std::size_t>(Py_TYPE(tensor)->tp_basicsize) / sizeof(std::uintptr_t);
  std::uint64_t places = 0;
  for (std::size_t at = sizeof(PyObject) / sizeof(std::uintptr_t); at < std::min<std::size_t>(size, 64); ++at) {
    if (word_of(tensor, static_cast<std::uint32_t>(at)) == identity) places |= std::uint64_t{1} << at;
  }
  return places;
}

/// Counts a tensor whose attribute was asked; different ones alone say anything.
[[gnu::noinline]] void prove_tensor(PyObject* tensor, std::uintptr_t identity) {
  if (identity == 0 || !g_is_known.load(std::memory_order_relaxed)) return;
  TensorProof& found = g_tensor_proof;
  const std::lock_guard<ShortLock> guard(found.lock);
  if (!is_same_type(found.type, tensor) || found.places == 0 || found.last_identity == identity) return;
  found.last_identity = identity;
  found.places &= places_of(tensor, identity);
  if (found.places == 0 || ++found.count < kNeeded) return;
  g_tensor_word.place.store(static_cast<std::uint32_t>(std::countr_zero(found.places)), std::memory_order_relaxed);
  g_tensor_word.type.store(found.type, std::memory_order_release);
}

/// 0: no tensors; 1: the first of them is where `args` says; -1: it is not.
int compare_tensor(PyObject* args, const PreHookArgs& read) {
  const Reference tensors = tensors_of(args);
  PyObject* tensor = first_of(tensors);
  if (tensor == nullptr) return tensors && read.first_tensor() == nullptr ? 0 : -1;
  return static_cast<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(read.first_tensor())) == asked_identity(tensor)
             ? 1
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

std::uintptr_t identity_of(PyObject* tensor) {
  if (g_tensor_word.type.load(std::memory_order_acquire) == Py_TYPE(tensor)) [[likely]]
    return word_of(tensor, g_tensor_word.place.load(std::memory_order_relaxed));
  const std::uintptr_t identity = asked_identity(tensor);
  prove_tensor(tensor, identity);
  return identity;
}

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
