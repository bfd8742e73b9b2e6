#pragma once

#include <Python.h>

#include <cstdint>

#include "bindings/collective_table.h"
#include "bindings/torch_layout.h"

namespace smon_rt::bindings {

/// The hooks of one process group, (before, after): a new tuple, nullptr with an exception set. The arguments are those
/// of make_collective_hooks() in _runtime.pyi.
PyObject* make_collective_hooks(PyObject* module, PyObject* const* args, Py_ssize_t count);
/// Number of the recording that hooks act in; 0: they do not.
PyObject* act_on_collectives(PyObject* module, PyObject* recording);
/// Gives kinds to the operations that this thread issues from here on, and returns what did before.
PyObject* exchange_kinds(PyObject* module, PyObject* kinds);

struct Hooks;

/// A transfer in a step that is not sampled, or one that a pipeline's schedule has announced with its payload: without
/// a word of Python, and without the GIL. False: it is something else, and nothing has been done. Who issues it is not
/// asked: it only tells what else than its wait can end it, and schedules wait.
bool begin_transfer(Hooks& hooks, const PreHookArgs& read, std::uint32_t recording);
/// Any operation, with the GIL. `args`: torch's object of Python. False: an exception is set.
bool begin_any(Hooks& hooks, PyObject* args, std::uint32_t recording);

/// Of the operation of this group that has now been issued; a token of 0: none was begun. Without the GIL.
Begun take_from_thread(const Hooks& hooks, std::int64_t op_id);
/// What becomes of one of begin_transfer(). Without the GIL.
void issued_read(const Begun& begun, const PostHookArgs& read);
/// An operation without a span of its own has been issued. Without the GIL.
void issued_unseen(const PostHookArgs& read);
/// Of any that was taken; and of one that was not, since its number has to be read first. False: an exception is set.
bool issued_any(const Begun& begun, PyObject* args);
bool issued_unread(Hooks& hooks, PyObject* args);

/// The operation has been issued: its span ends with the wait for this work, or now if there is none. Either it was
/// done inside the call, or it is one of several that have one work together, which no hook sees. False: an exception
/// is set.
bool operation_issued(const Begun& begun, PyObject* work, bool is_coalesced);

/// Hands an error to Python, which says it once. False: it is one that must go on to the caller, and stays set.
bool swallow_error();

/// What the hooks that make_collective_hooks() has made know of their group; borrowed, nullptr if it has not.
Hooks* hooks_of(PyObject* hook);

/// Makes the types and names that hooks need. False: an exception is set.
bool set_up_hooks(PyObject* module);

}  // namespace smon_rt::bindings
