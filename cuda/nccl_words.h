#pragma once

#include "record/comm_op.h"

namespace smon_rt::nccl {

// NCCL's words for what an op is; nullptr and words that are not known are kUnknown.
CommFunction function_of(const char* word) noexcept;
CommDatatype datatype_of(const char* word) noexcept;
CommAlgorithm algorithm_of(const char* word) noexcept;
CommProtocol protocol_of(const char* word) noexcept;

}  // namespace smon_rt::nccl
