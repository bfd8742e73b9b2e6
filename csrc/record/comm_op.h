#pragma once

#include <cstdint>

#include "format/comm_words.h"
#include "format/span.h"

namespace smon_rt {

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
  bool is_sampled = false;         // the step
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
