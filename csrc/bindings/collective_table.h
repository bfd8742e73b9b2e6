#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "api/smon_rt.h"

// Operations of process groups that are under way, from their issue to the return of the wait for them. The hooks of
// integrations/torch/collectives.py fill it; docs/torch.md says what ends what.
//
// Threading: any thread, with or without the GIL; what needs it says so. One lock, held over plain memory and calls of
// smon_rt.h alone: never while Python code could run, which might come back here.

typedef struct _object PyObject;  // as Python.h has it, which nothing here needs

namespace smon_rt::bindings {

/// Who issues an operation: C++ called by the autograd engine, the dispatcher, another C++, Python that waits itself.
/// The numbers of gradients.py.
enum class Origin : std::uint8_t { kEngine, kFunctional, kCpp, kPython };

/// An operation whose span is open.
struct Begun {
  smon_token token = 0;
  std::uintptr_t address = 0;  // where the result of a functional collective lies
  Origin origin = Origin::kPython;
  bool is_on_cpu = false;
  bool is_unsampled = false;  // nothing of it is kept once it has ended: it may do so late, and nobody asks when
  bool is_read = false;       // its work is awaited by what torch has of it, without Python
};

/// Makes the table, once. `let_go` gives a reference back, and is called with the GIL alone, never under the lock.
void set_up_table(void (*let_go)(PyObject*));

/// Begins the span of an operation of this thread. 0: none of its own. A span of communication that someone else has
/// opened around the call is this operation, and only gets the ids.
smon_token begin_operation(int kind, const smon_span_ids& ids);

/// Between the hooks of torch, which name an operation of a group by a number: for what its thread has no place for,
/// since its place holds one that came later, inside of it or after it had failed.
void keep_issued(const void* group, std::int64_t op_id, const Begun& begun);
/// Of the operation that has now been issued; a token of 0: none was begun.
Begun take_issued(const void* group, std::int64_t op_id);

/// Has the span of an operation end with the wait for its work: found by `key`, the work's address, which is its own as
/// long as `reference` lives. Steals the reference, which may be nullptr. What had the same key, and the oldest if
/// there are too many, end where they had been issued. With the GIL.
void await(std::uintptr_t key, const Begun& begun, PyObject* reference);
/// The same without the GIL, and without a reference.
void await_without_python(std::uintptr_t key, const Begun& begun);
/// A key for a work that is not found by its address.
std::uintptr_t make_key();
/// Token of the operation of that key, which is the caller's from here on; 0: there is none. With the GIL, as all that
/// takes what is awaited.
smon_token take_awaited(std::uintptr_t key);
/// The same by either of two, of which 0 is none.
smon_token take_awaited(std::uintptr_t key, std::uintptr_t other_key);
/// Of the functional collective whose result lies there.
smon_token take_awaited_at(std::uintptr_t address);
/// Another work lies where that of this key lay: what nobody has waited for ends where it had been issued. Any thread.
void forget_awaited(std::uintptr_t key);
/// The work that this reference was of is gone: nobody can wait for it any more.
void end_dropped(const PyObject* reference);

/// Ends, or aborts, the span of an operation that was taken.
void end_operation(smon_token token, smon_time_source source, std::uint16_t flags);
void abort_operation(smon_token token);

/// The backward pass has returned: the reducer has waited for all that it issued.
void end_reductions();
/// At a step's end: operations of the step before that nobody waited for end where they had been issued.
void end_unwaited();
/// Before recording stops: all of them.
void end_all_operations();

/// Keeps a reference until somebody with the GIL comes by: the next of the two above gives it back.
void leave_reference(PyObject* reference);

/// How many there are, readable without the lock: what is not there costs nothing to look for.
struct alignas(64) Counts {
  std::atomic<std::uint32_t> issued{0};
  std::atomic<std::uint32_t> awaited{0};
  std::atomic<std::uint32_t> addresses{0};
  std::atomic<std::uint32_t> transfers{0};       // of transfer_labels.h
  std::atomic<std::uint32_t> recording{0};       // that hooks act in; 0: they do not
  std::atomic<bool> has_missed_identity{false};  // of a transfer
};
inline constinit Counts g_counts;

[[gnu::always_inline]] inline bool has_issued() {
  return g_counts.issued.load(std::memory_order_relaxed) != 0;
}
[[gnu::always_inline]] inline bool has_awaited() {
  return g_counts.awaited.load(std::memory_order_relaxed) != 0;
}
[[gnu::always_inline]] inline bool has_addresses() {
  return g_counts.addresses.load(std::memory_order_relaxed) != 0;
}

}  // namespace smon_rt::bindings
