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
  bool asks_kernels = false;    // when they run
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
  Kind span_kind = Kind::kStep;  // numbers are per kind, and of messages per peer
  std::int32_t span_peer = kNoPeer;
  bool is_captured = false;  // into a graph: each replay runs it without saying so
  bool is_enqueued = false;
  std::int64_t start_ticks = 0;
  std::int64_t enqueued_ticks = 0;
  // Of its transfers over the network, if it has any: 0 transfers is no evidence about channels.
  std::int64_t first_transfer_ticks = 0;
  std::int64_t last_transfer_ticks = 0;
  std::uint32_t transfers = 0;
  std::uint32_t open_transfers = 0;
  // Of its kernels, in the GPU's global timer; the callbacks that told of the first start and of the last stop came at
  // kernel_begun_ticks and kernel_seen_ticks.
  std::uint64_t kernel_start_device_ns = 0;
  std::uint64_t kernel_stop_device_ns = 0;
  std::int64_t kernel_begun_ticks = 0;
  std::int64_t kernel_seen_ticks = 0;
  std::uint32_t kernels = 0;
  std::uint32_t open_kernels = 0;
  std::uint8_t slowest_channel = 0;
  bool has_rejected_times = false;  // of a channel, that cannot be true: the others do not say when it ran
};

}  // namespace smon_rt
