#include "bindings/last_work.h"

#include <utility>

#include "bindings/collective_table.h"
#include "bindings/thread_state.h"

namespace smon_rt::bindings {

namespace {

/// A thread that ends has no GIL.
struct ThreadEnd {
  bool is_watched = false;
  ~ThreadEnd() {
    PyObject* work = std::exchange(t_thread.last_work, nullptr);
    if (work != nullptr) leave_reference(work);
  }
};
thread_local ThreadEnd t_end;

}  // namespace

void keep_last_work(PyObject* work) {
  if (work != nullptr) t_end.is_watched = true;
  Py_XINCREF(work);
  Py_XDECREF(std::exchange(t_thread.last_work, work));
}

}  // namespace smon_rt::bindings
