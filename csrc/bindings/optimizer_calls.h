#pragma once

// The spans of optimizers, beside what their closures compute: integrations/torch/steps.py says which.

namespace smon_rt::bindings {

/// Begins the first step of a loop that has not said that it makes its own. False: an exception is set.
bool begin_unless_explicit();

/// Something else begins, in the closure of an optimizer's step if there is one: the optimizer waits for it.
void interrupt_optimizer();
/// That has ended: what is left of the optimizer's step is the optimizer's.
void go_on_with_optimizer();
/// What an exception has left open on this thread ends with its step.
void abort_optimizer_steps();

}  // namespace smon_rt::bindings
