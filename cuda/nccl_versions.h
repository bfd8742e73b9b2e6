#pragma once

#include <string>

namespace smon_rt::nccl {

/// The version of the NCCL that a variable of its belongs to, as ncclGetVersion has it (22907: 2.29.7); 0: unknown.
///
/// Threading: any, but no callback that must not wait: it takes the loader's lock.
int version_at(const void* variable);

/// Why this NCCL is not asked when its kernels run, "" if it may be. In some versions that ends the job or slows it
/// down, and what has not been tried is not tried here. An op's events are fixed before NCCL says which op it is, so
/// that one op that does not bear it refuses the version.
std::string kernel_times_refusal(int version);

}  // namespace smon_rt::nccl
