#pragma once

#include <Python.h>

#include <cstdint>

#include "api/smon_rt.h"

// What the calls of smon_rt._runtime have in common: kinds, ids, names and tokens out of Python objects. Nothing here
// raises into a training step; what cannot be understood is handed to the handler of Python (misuse()), which raises
// only while a job is being set up, or when it was asked to be strict.

namespace smon_rt::bindings {

/// The ids that begin(), span() and annotate() take, and what they belong to.
struct SpanArguments {
  int kind = SMON_KIND_COUNT;  // SMON_KIND_COUNT: unknown, which the recorder drops and counts
  smon_span_ids ids = SMON_NO_IDS;
  PyObject* name = nullptr;  // borrowed; nullptr: none
};

/// A token that no recorder gives: ending it is counted as foreign.
inline constexpr smon_token kNotAToken = 1;

/// Makes the tables that parsing needs. Once, when the module is loaded; false with an exception set.
bool set_up_arguments();

/// Names of all kinds, by their number: a new tuple, or nullptr with an exception set.
PyObject* kind_names();

/// `handler(message, is_definition)` hears of every misuse. is_definition: something was made that can never work,
/// such as a span of an unknown kind. What the handler raises reaches the caller. Steals the reference.
void set_misuse_handler(PyObject* handler);

/// Tells the handler. False: it raised, and the call must fail. A pending exception is replaced.
[[gnu::cold]] bool misuse(bool is_definition, const char* format, ...);

/// Whether a call by position got as many arguments as it takes. False: an exception is set.
bool has_arguments(const char* function, Py_ssize_t count, Py_ssize_t wanted);

/// Kind by name or number, SMON_KIND_COUNT if there is none such, which is a misuse; false: an exception is set.
bool parse_kind(const char* function, PyObject* object, int& kind);

/// Reads `positional` ids in their order, then those named in kwnames (or nullptr). False: an exception is set.
bool parse_ids(const char* function, PyObject* const* args, Py_ssize_t positional, PyObject* kwnames,
               SpanArguments& arguments);

/// A token from an int; anything else is a misuse, and kNotAToken. False: an exception is set.
bool parse_token(const char* function, PyObject* object, smon_token& token);

/// The number of a name in the running recording: 0 if nothing runs or its table is full. Looks it up in a dict of
/// ours, so that the recorder's lock is taken once for each name.
std::uint16_t name_id(PyObject* name);

/// As name_id(), remembered in `cache` (0 at first) for the recording it is valid in.
std::uint16_t cached_name_id(PyObject* name, std::uint64_t& cache);

/// Numbers of names are those of one recording: forgotten between the two calls, in which it starts.
void begin_new_names();
void end_new_names(bool has_started);

}  // namespace smon_rt::bindings
