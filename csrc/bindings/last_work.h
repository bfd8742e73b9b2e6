#pragma once

#include <Python.h>

namespace smon_rt::bindings {

/// Keeps the work of this thread until it has been waited for, its next one, or the step's end: its caller must get the
/// same object. `work` may be nullptr. With the GIL.
void keep_last_work(PyObject* work);

}  // namespace smon_rt::bindings
