#pragma once

#include <Python.h>

#include <cstddef>

#include "bindings/collective_table.h"
#include "bindings/python_reference.h"

// Who issues an operation, told by the Python frame below the hook that torch calls.

namespace smon_rt::bindings {

/// The frame that the calling thread's Python is in, if there is one: on a thread of the autograd engine the hook may
/// be all the Python there is.
class Caller {
 public:
  Caller();

  Origin origin() const { return origin_; }
  PyObject* code() const { return code_.get(); }
  int instruction() const { return instruction_; }
  /// Whether a hook of the backward pass calls (of DDP, or after a gradient has accumulated), and not the backward of
  /// an autograd function, which is part of the model.
  bool is_called_by_hook() const;

 private:
  Reference frame_;
  Reference code_;
  int instruction_ = -1;
  Origin origin_ = Origin::kEngine;
};

/// Files by which origins are told: a dict of path → number of Origin; those of the autograd engine and of its
/// functions. False: an exception is set.
bool learn_files(PyObject* origins, PyObject* engine_file, PyObject* function_file);

/// What a call site of torch's own file issues, once that is known: it calls one method of a group.
bool known_operation(const Caller& caller, std::size_t& operation);
void learn_operation(const Caller& caller, std::size_t operation);

}  // namespace smon_rt::bindings
