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
};

/// What the next transfer of this tensor is, used up by it: found by where its data is, or by which tensor it is (0:
/// not known).
void expect_transfer(std::uintptr_t place, std::uintptr_t identity, bool is_send, const Label& label);
bool take_transfer(std::uintptr_t place, bool is_send, Label& label);
bool take_transfer_of(std::uintptr_t identity, bool is_send, Label& label);
void clear_transfers();

inline bool has_transfers() {
  return g_counts.transfers.load(std::memory_order_relaxed) != 0;
}

}  // namespace smon_rt::bindings
