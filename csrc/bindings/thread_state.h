#pragma once

#include <cstdint>

#include "api/smon_rt.h"
#include "bindings/collective_table.h"

namespace smon_rt::bindings {

/// An operation of this thread between the two hooks of torch, which name it by a number of its group.
struct Issued {
  const void* group = nullptr;
  std::int64_t op_id = 0;
  Begun begun;
  std::uint32_t recording = 0;  // of another one: it is gone
};

/// What hooks look at for each operation, of one thread and in one place: between two operations of a training step the
/// processor forgets all of it, and each line of memory is fetched anew.
struct ThreadState {
  smon_token forward = 0;     // of the forward that backward is awaited for
  PyObject* kinds = nullptr;  // owned: a byte for each operation, its kind as an integration says it; or nullptr
  Issued issued;
  PyObject* last_work = nullptr;       // owned, see last_work.h
  std::int64_t forward_end_ticks = 0;  // when the forward's module returned
  bool is_inside_model = false;        // a module's call is a forward if no other is around it
};
inline constinit thread_local ThreadState t_thread;

}  // namespace smon_rt::bindings
