#pragma once

#include <cstdint>

// What a library of collectives (NCCL) says an operation is, in our own numbers. Written to files: never renumber.

namespace smon_rt {

enum class CommFunction : std::uint8_t {
  kUnknown,
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kSend,
  kRecv,
  kAllToAll,
  kGather,
  kScatter,
};

enum class CommAlgorithm : std::uint8_t {
  kUnknown,
  kTree,
  kRing,
  kCollnetDirect,
  kCollnetChain,
  kNvls,
  kNvlsTree,
  kPat
};

enum class CommProtocol : std::uint8_t { kUnknown, kLl, kLl128, kSimple };

/// Of the elements that are sent.
enum class CommDatatype : std::uint8_t {
  kUnknown,
  kInt8,
  kUint8,
  kInt32,
  kUint32,
  kInt64,
  kUint64,
  kFloat16,
  kFloat32,
  kFloat64,
  kBfloat16,
  kFloat8E4m3,
  kFloat8E5m2,
};

constexpr std::uint64_t bytes_of(CommDatatype datatype) {
  switch (datatype) {
    case CommDatatype::kInt8:
    case CommDatatype::kUint8:
    case CommDatatype::kFloat8E4m3:
    case CommDatatype::kFloat8E5m2:
      return 1;
    case CommDatatype::kFloat16:
    case CommDatatype::kBfloat16:
      return 2;
    case CommDatatype::kInt32:
    case CommDatatype::kUint32:
    case CommDatatype::kFloat32:
      return 4;
    case CommDatatype::kInt64:
    case CommDatatype::kUint64:
    case CommDatatype::kFloat64:
      return 8;
    case CommDatatype::kUnknown:
      break;
  }
  return 0;
}

}  // namespace smon_rt
