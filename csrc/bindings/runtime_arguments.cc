#include "bindings/runtime_arguments.h"

#if PY_VERSION_HEX < 0x030B0000
#include <longintrepr.h>
#endif

#include <array>
#include <atomic>
#include <cstdarg>
#include <cstddef>
#include <limits>

#include "format/kind.h"

namespace smon_rt::bindings {

namespace {

static_assert(kKindCount == SMON_KIND_COUNT);

// In the order in which begin() takes them.
enum Id : std::uint8_t {
  kMicrobatch,
  kChunk,
  kNameId,
  kCommId,
  kPeer,
  kCommSeq,
  kPayloadBytes,
  kTrackId,
  kFlags,
  kName,
  kIdCount
};

constexpr std::array<const char*, kIdCount> kIdNames = {
    "microbatch", "chunk", "name_id", "comm_id", "peer", "comm_seq", "payload_bytes", "track_id", "flags", "name",
};

// The module refuses subinterpreters, so all of this belongs to the one interpreter of the process.
std::array<PyObject*, kKindCount> g_kind_names;  // interned
PyObject* g_kind_numbers = nullptr;              // dict: for strings that are not interned
std::array<PyObject*, kIdCount> g_id_names;      // interned
PyObject* g_name_ids = nullptr;                  // dict
std::atomic<PyObject*> g_misuse_handler{nullptr};
// Counts recordings; 0: none runs whose names could be known.
std::atomic<std::uint64_t> g_recording{0};
std::uint64_t g_recordings = 0;
std::atomic<bool> g_are_names_full{false};

// A literal in the caller's code is interned, so its address finds the kind: one probe, most often.
struct KindByAddress {
  static constexpr std::size_t kSize = 128;
  struct Entry {
    PyObject* name = nullptr;
    std::uint8_t kind = 0;
  };
  std::array<Entry, kSize> entries{};

  static std::size_t place(PyObject* name) { return (reinterpret_cast<std::uintptr_t>(name) >> 4) % kSize; }

  void add(PyObject* name, std::uint8_t kind) {
    std::size_t at = place(name);
    while (entries[at].name != nullptr) at = (at + 1) % kSize;
    entries[at] = {name, kind};
  }
  int find(PyObject* name) const {
    for (std::size_t at = place(name); entries[at].name != nullptr; at = (at + 1) % kSize) {
      if (entries[at].name == name) return entries[at].kind;
    }
    return SMON_KIND_COUNT;
  }
};
KindByAddress g_kind_by_address;

/// The value of a key as a number, `missing` if it is not there. Clears what the look-up raised.
long look_up(PyObject* dict, PyObject* key, long missing) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* value = nullptr;
  if (PyDict_GetItemRef(dict, key, &value) < 0) PyErr_Clear();
#else
  PyObject* value = PyDict_GetItemWithError(dict, key);
  if (value == nullptr) PyErr_Clear();
  Py_XINCREF(value);
#endif
  if (value == nullptr) return missing;
  const long number = PyLong_AsLong(value);
  Py_DECREF(value);
  return number;
}

bool is_number(PyObject* object) {
  return PyLong_Check(object) || PyIndex_Check(object);
}

/// An int of one digit (below 2^30), which ids nearly always are, without a call. False: something else.
inline bool read_small(PyObject* object, long long& value) {
  if (!PyLong_CheckExact(object)) return false;
  auto* number = reinterpret_cast<PyLongObject*>(object);
#if PY_VERSION_HEX >= 0x030C0000
  if (!PyUnstable_Long_IsCompact(number)) return false;
  value = PyUnstable_Long_CompactValue(number);
#else
  const Py_ssize_t size = Py_SIZE(number);
  if (size < -1 || size > 1) return false;
  value = size == 0 ? 0 : size * static_cast<long long>(number->ob_digit[0]);
#endif
  return true;
}

/// An integer of any kind (int, numpy.int64). False, with no exception set: it is none, or beyond 64 bits.
bool read_integer(PyObject* object, long long& value) {
  int overflow = 0;
  if (PyLong_Check(object)) [[likely]] {
    value = PyLong_AsLongLongAndOverflow(object, &overflow);
    return overflow == 0;
  }
  PyObject* number = PyNumber_Index(object);
  if (number == nullptr) {
    PyErr_Clear();
    return false;
  }
  value = PyLong_AsLongLongAndOverflow(number, &overflow);
  Py_DECREF(number);
  return overflow == 0;
}

/// An id out of its range is left out: none is better than a wrong one.
template <typename T>
bool store(T& field, long long value, long long lowest) {
  if (value < lowest || (sizeof(T) < sizeof(value) && value > static_cast<long long>(std::numeric_limits<T>::max()))) {
    return false;
  }
  field = static_cast<T>(value);
  return true;
}

bool store_id(std::size_t id, long long value, smon_span_ids& ids) {
  switch (id) {
    case kMicrobatch:
      return store(ids.microbatch, value, -1);
    case kChunk:
      return store(ids.chunk, value, -1);
    case kNameId:
      return store(ids.name_id, value, 0);
    case kCommId:
      return store(ids.comm_id, value, 0);
    case kPeer:
      return store(ids.peer, value, -1);
    case kCommSeq:
      return store(ids.comm_seq, value, 0);
    case kPayloadBytes:
      return store(ids.payload_bytes, value, 0);
    case kTrackId:
      return store(ids.track_id, value, 0);
    case kFlags:
      return store(ids.flags, value, 0);
    default:
      return false;
  }
}

bool parse_id(const char* function, std::size_t id, PyObject* object, SpanArguments& arguments) {
  if (object == Py_None) return true;
  if (id == kName) {
    if (PyUnicode_Check(object)) {
      arguments.name = object;
      return true;
    }
    return misuse(false, "%s: name is a %s, expected str; left out", function, Py_TYPE(object)->tp_name);
  }
  long long value;
  if (read_integer(object, value) && store_id(id, value, arguments.ids)) [[likely]]
    return true;
  if (!is_number(object)) {
    return misuse(false, "%s: %s is a %s, expected int; left out", function, kIdNames[id], Py_TYPE(object)->tp_name);
  }
  return misuse(false, "%s: %s is %R, which is out of range; left out", function, kIdNames[id], object);
}

std::size_t id_of(PyObject* keyword) {
  for (std::size_t id = 0; id < kIdCount; ++id) {
    if (g_id_names[id] == keyword) return id;
  }
  for (std::size_t id = 0; id < kIdCount; ++id) {
    if (PyUnicode_Compare(g_id_names[id], keyword) == 0) return id;
  }
  return kIdCount;
}

}  // namespace

bool set_up_arguments() {
  g_kind_numbers = PyDict_New();
  g_name_ids = PyDict_New();
  if (g_kind_numbers == nullptr || g_name_ids == nullptr) return false;
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    PyObject* name = PyUnicode_InternFromString(kKindNames[kind].data());
    PyObject* number = PyLong_FromSize_t(kind);
    if (name == nullptr || number == nullptr || PyDict_SetItem(g_kind_numbers, name, number) < 0) return false;
    Py_DECREF(number);
    g_kind_names[kind] = name;
    g_kind_by_address.add(name, static_cast<std::uint8_t>(kind));
  }
  for (std::size_t id = 0; id < kIdCount; ++id) {
    g_id_names[id] = PyUnicode_InternFromString(kIdNames[id]);
    if (g_id_names[id] == nullptr) return false;
  }
  return true;
}

PyObject* kind_names() {
  PyObject* names = PyTuple_New(static_cast<Py_ssize_t>(kKindCount));
  if (names == nullptr) return nullptr;
  for (std::size_t kind = 0; kind < kKindCount; ++kind) {
    Py_INCREF(g_kind_names[kind]);
    PyTuple_SET_ITEM(names, static_cast<Py_ssize_t>(kind), g_kind_names[kind]);
  }
  return names;
}

void set_misuse_handler(PyObject* handler) {
  // The one before is kept alive: another thread may be calling it.
  g_misuse_handler.store(handler);
}

bool misuse(bool is_definition, const char* format, ...) {
  PyErr_Clear();
  smon_count_misuse();
  PyObject* handler = g_misuse_handler.load();
  if (handler == nullptr) return true;
  std::va_list values;
  va_start(values, format);
  PyObject* message = PyUnicode_FromFormatV(format, values);
  va_end(values);
  if (message == nullptr) {
    PyErr_Clear();
    return true;
  }
  PyObject* result = PyObject_CallFunctionObjArgs(handler, message, is_definition ? Py_True : Py_False, nullptr);
  Py_DECREF(message);
  Py_XDECREF(result);
  return result != nullptr;
}

bool has_arguments(const char* function, Py_ssize_t count, Py_ssize_t wanted) {
  if (count == wanted) [[likely]]
    return true;
  PyErr_Format(PyExc_TypeError, "%s() takes %zd arguments, got %zd", function, wanted, count);
  return false;
}

bool parse_kind(const char* function, PyObject* object, int& kind) {
  kind = SMON_KIND_COUNT;
  if (PyUnicode_Check(object)) {
    kind = g_kind_by_address.find(object);
    if (kind == SMON_KIND_COUNT) kind = static_cast<int>(look_up(g_kind_numbers, object, SMON_KIND_COUNT));
    if (kind != SMON_KIND_COUNT) [[likely]]
      return true;
    return misuse(true, "%s: there is no kind %R", function, object);
  }
  long long number;
  if (is_number(object) && read_integer(object, number) && number >= 0 && number < SMON_KIND_COUNT) [[likely]] {
    kind = static_cast<int>(number);
    return true;
  }
  return misuse(true, "%s: there is no kind %R: give a name, or a number from 0 to %d", function, object,
                SMON_KIND_COUNT - 1);
}

bool parse_ids(const char* function, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames,
               SpanArguments& arguments) {
  Py_ssize_t first = 0;
  long long value;
  // What a pipeline gives with each span.
  if (positional > kMicrobatch && read_small(args[kMicrobatch], value) && store(arguments.ids.microbatch, value, -1))
      [[likely]] {
    first = 1;
    if (positional > kChunk && read_small(args[kChunk], value) && store(arguments.ids.chunk, value, -1)) first = 2;
  }
  for (Py_ssize_t i = first; i < positional; ++i) {
    if (i == kIdCount) [[unlikely]] {
      if (!misuse(true, "%s: more arguments than ids; the rest is left out", function)) return false;
      break;
    }
    if (!parse_id(function, static_cast<std::size_t>(i), args[i], arguments)) return false;
  }
  if (kwnames == nullptr) return true;
  const Py_ssize_t keywords = PyTuple_GET_SIZE(kwnames);
  for (Py_ssize_t i = 0; i < keywords; ++i) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    const std::size_t id = id_of(keyword);
    const bool is_parsed = id != kIdCount ? parse_id(function, id, args[positional + i], arguments)
                                          : misuse(true, "%s: unknown argument %U; left out", function, keyword);
    if (!is_parsed) return false;
  }
  return true;
}

bool parse_token(const char* function, PyObject* object, smon_token& token) {
  long long small;
  if (read_small(object, small) && small >= 0) {  // 0, most often: nothing was begun
    token = static_cast<smon_token>(small);
    return true;
  }
  if (PyLong_Check(object)) [[likely]] {
    token = PyLong_AsUnsignedLongLongMask(object);
    if (token == 0 && PyObject_IsTrue(object) == 1) token = kNotAToken;  // a multiple of 2^64
    return true;
  }
  token = kNotAToken;
  return misuse(false, "%s: a token is an int that begin() gave, got a %s", function, Py_TYPE(object)->tp_name);
}

std::uint16_t name_id(PyObject* name) {
  if (g_recording.load(std::memory_order_relaxed) == 0) return 0;
  const long known = look_up(g_name_ids, name, -1);
  if (known >= 0) return static_cast<std::uint16_t>(known);
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) {  // half of a surrogate pair: no such name can be written
    PyErr_Clear();
    return 0;
  }
  // Names made up at run time ("batch 1", "batch 2", …) fill the table: then none is looked for, or kept, any more.
  if (g_are_names_full.load(std::memory_order_relaxed)) {
    smon_count_misuse();
    return 0;
  }
  const std::uint16_t id = smon_intern_name(text);
  if (id == 0) {
    g_are_names_full.store(true, std::memory_order_relaxed);
    return 0;
  }
  PyObject* number = PyLong_FromLong(id);
  if (number == nullptr || PyDict_SetItem(g_name_ids, name, number) < 0) PyErr_Clear();
  Py_XDECREF(number);
  return id;
}

std::uint16_t cached_name_id(PyObject* name, std::uint64_t& cache) {
  const std::uint64_t recording = g_recording.load(std::memory_order_relaxed);
  std::atomic_ref<std::uint64_t> shared(cache);  // spans may be shared by threads that hold no common lock
  const std::uint64_t word = shared.load(std::memory_order_relaxed);
  if (word >> 16 == recording) return static_cast<std::uint16_t>(word);
  const std::uint16_t id = name_id(name);
  shared.store(recording << 16 | id, std::memory_order_relaxed);
  return id;
}

void begin_new_names() {
  g_recording.store(0);
}

void end_new_names(bool has_started) {
  PyDict_Clear(g_name_ids);
  g_are_names_full.store(false);
  if (has_started) g_recording.store(++g_recordings);
}

}  // namespace smon_rt::bindings
