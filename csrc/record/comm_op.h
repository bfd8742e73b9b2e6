#pragma once

#include <cstdint>

#include "format/span.h"

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

/// What the library of collectives says of an op when it enqueues it.
struct CommOpFacts {
  CommFunction function = CommFunction::kUnknown;
  CommDatatype datatype = CommDatatype::kUnknown;
  CommAlgorithm algorithm = CommAlgorithm::kUnknown;
  CommProtocol protocol = CommProtocol::kUnknown;
  std::uint8_t channel_count = 0;
  std::int32_t peer = kNoPeer;  // rank in the communicator: of transfers the other one, else the root
  std::uint64_t payload_bytes = 0;
  std::uint64_t library_seq = 0;  // the library's own number: per communicator and function; 0 for transfers
};

/// An op as far as it is known now. Times are ticks of the host's clock, 0 where nothing was seen.
struct CommOp {
  CommOpFacts facts;
  std::uint32_t communicator = 0;  // its number in the process
  std::uint32_t step = 0;          // of training
  // The span that it belongs to: our communicator and number, 0 where none was open.
  std::uint16_t comm_id = kNoId;
  std::uint32_t comm_seq = 0;
  bool is_captured = false;  // into a graph: each replay runs it without saying so
  bool is_enqueued = false;
  std::int64_t start_ticks = 0;
  std::int64_t enqueued_ticks = 0;
  // Of its transfers over the network, if it has any: 0 transfers is no evidence about channels.
  std::int64_t first_transfer_ticks = 0;
  std::int64_t last_transfer_ticks = 0;
  std::uint32_t transfers = 0;
  std::uint32_t open_transfers = 0;
  // Of its kernels, in the GPU's global timer; the callback that told of the last stop came at kernel_seen_ticks.
  std::uint64_t kernel_start_device_ns = 0;
  std::uint64_t kernel_stop_device_ns = 0;
  std::int64_t kernel_seen_ticks = 0;
  std::uint32_t kernels = 0;
  std::uint32_t open_kernels = 0;
  std::uint8_t slowest_channel = 0;
};

}  // namespace smon_rt
