#include "record/sequences.h"

#include "format/span.h"

namespace smon_rt {

std::uint32_t Sequences::next(std::uint16_t comm_id, std::int32_t peer, Kind kind) noexcept {
  if (!is_point_to_point(kind)) peer = kNoPeer;
  // Never 0: kinds of communication are not.
  const std::uint64_t key = static_cast<std::uint64_t>(static_cast<std::uint32_t>(peer)) << 32 |
                            static_cast<std::uint64_t>(comm_id) << 8 | static_cast<std::uint64_t>(kind);
  std::size_t at = (key * 0x9e3779b97f4a7c15) >> 52;
  static_assert(kCapacity == std::size_t{1} << (64 - 52));
  for (std::size_t probes = 0; probes < kMaxProbes; ++probes, at = (at + 1) % kCapacity) {
    Entry& entry = entries_[at];
    // Relaxed throughout: a key, once set, stays, and nothing else hangs on it but its own count.
    std::uint64_t found = entry.key.load(std::memory_order_relaxed);
    if (found == 0 && entry.key.compare_exchange_strong(found, key, std::memory_order_relaxed)) found = key;
    if (found == key) return entry.count.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  return 0;
}

}  // namespace smon_rt
