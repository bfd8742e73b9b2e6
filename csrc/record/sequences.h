#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "format/kind.h"

namespace smon_rt {

/// Our own sequence numbers of communication: per (communicator, kind), and per (communicator, peer, kind) for sends
/// and receives. The n-th all-reduce of a communicator is number n on each of its ranks, which is what matches them; so
/// every op counts, from the communicator's first one on, whether it is then sampled, dropped or neither.
///
/// Threading: any thread, lock-free. Cost: one probe and one atomic add. When full: 0, "not counted".
class Sequences {
 public:
  static constexpr std::size_t kCapacity = 4096;
  static constexpr std::size_t kMaxProbes = 64;  // a full table stays cheap

  /// The number of this op, from 1 on.
  std::uint32_t next(std::uint16_t comm_id, std::int32_t peer, Kind kind) noexcept;

 private:
  struct Entry {
    std::atomic<std::uint64_t> key{0};  // set once
    std::atomic<std::uint32_t> count{0};
  };

  std::array<Entry, kCapacity> entries_{};
};

/// Kinds whose sequence is counted per peer, too.
constexpr bool is_point_to_point(Kind kind) {
  return kind >= Kind::kForwardSend && kind <= Kind::kBackwardRecv;
}

}  // namespace smon_rt
