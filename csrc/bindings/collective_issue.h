#pragma once

#include <Python.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "bindings/collective_table.h"
#include "bindings/python_reference.h"
#include "bindings/torch_attributes.h"
#include "bindings/torch_caller.h"
#include "bindings/torch_layout.h"

// What an operation of a process group is: its kind, and which ids it has.

namespace smon_rt::bindings {

/// One process group. What each operation needs comes first.
struct Hooks {
  PyObject_HEAD std::atomic<std::uint32_t> recording;  // that comm_id is of
  std::atomic<std::uint16_t> comm_id;
  std::int32_t rank;  // of this process in the job, -1 if it is not known
  Py_ssize_t member_count;
  std::int32_t* members;
  std::array<std::int32_t, 8> few_members;  // where `members` points to if there are no more
  PyObject* group;                          // of groups.py

  std::int32_t member(std::int64_t rank_in_group) const {
    return rank_in_group >= 0 && rank_in_group < member_count ? members[rank_in_group] : -1;
  }
};

/// What one call of the hook finds out.
struct Issue {
  Issue(Hooks* of_group, PyObject* of_torch) : hooks(of_group), args(of_torch), read(read_before(of_torch)) {}

  Hooks* hooks;
  PyObject* args;
  const PreHookArgs* read;  // the same where torch has it, or nullptr
  Caller caller;
  std::size_t number = 0;
  long long op_id = 0;
  Operation operation;
  Reference tensors;
  int kind = SMON_COLLECTIVE;
  smon_span_ids ids = SMON_NO_IDS;
  Begun begun;
};

/// Finds out what the operation is: not known, perhaps, and then nothing else of it. False: an exception is set.
bool find_out(Issue& issue, std::uint32_t recording);

/// The kind that an integration says this operation of HookOpName has on this thread.
int said_kind(std::size_t number);
/// Kind of a transfer that nobody has explained: towards higher ranks is forward. Both sides find the same.
int direction(std::int32_t rank, std::int32_t peer, bool is_send);

}  // namespace smon_rt::bindings
