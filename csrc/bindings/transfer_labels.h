#pragma once

#include <cstdint>

#include "bindings/collective_table.h"

// What is known ahead of transfers: a pipeline's schedule says it, the hooks of process groups take it.
//
// Threading: as collective_table.h.

namespace smon_rt::bindings {

/// What a transfer is for: the kind, and the ids of the local compute that it serves.
struct Label {
  int kind;
  std::int16_t microbatch;
  std::int16_t chunk;
  std::int64_t payload_bytes = -1;  // -1: not said
};

/// What the next transfer of this tensor is, used up by it: found by where its data is, or by which tensor it is (0:
/// not known, of either).
void expect_transfer(std::uintptr_t place, std::uintptr_t identity, bool is_send, const Label& label);
bool take_transfer(std::uintptr_t place, bool is_send, Label& label);
bool take_transfer_of(std::uintptr_t identity, bool is_send, Label& label);
/// The same, if its payload is said: else it stays.
bool take_whole_transfer_of(std::uintptr_t identity, bool is_send, Label& label);
void clear_transfers();

/// Whether each transfer so far was of the tensor that was announced, and not of another one with the same data: then
/// where the data is, which is a call of torch, need not be asked.
[[gnu::always_inline]] inline bool are_identities_enough() {
  return !g_counts.has_missed_identity.load(std::memory_order_relaxed);
}
[[gnu::always_inline]] inline bool has_transfers() {
  return g_counts.transfers.load(std::memory_order_relaxed) != 0;
}

}  // namespace smon_rt::bindings
