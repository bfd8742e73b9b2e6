#pragma once

#include <cstdint>

#include "api/smon_rt.h"

// The forward of a plain model that awaits its backward on this thread: integrations/torch/compute.py begins it, and
// whatever is recorded next closes it.

namespace smon_rt::bindings {

/// Ends the calling thread's forward where its module returned, unless the module is still running.
void close_forward(std::uint16_t flags);

/// Whether a model's call runs on this thread from here on; returns whether one did.
bool set_inside_model(bool is_inside);

/// The span of a backward pass that has begun: its end is noticed by the autograd engine, if anybody asks that.
void await_backward_end(smon_token token);
/// When the backward pass that ended last had computed all, before it waited for collectives; 0: when it ended.
std::int64_t take_backward_end();

}  // namespace smon_rt::bindings
