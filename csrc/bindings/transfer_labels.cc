#include "bindings/transfer_labels.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>

#include "bindings/short_lock.h"

namespace smon_rt::bindings {

namespace {

/// Labels beyond it, that nobody took, go.
constexpr std::size_t kMaxPending = 4096;

struct Transfer {
  std::uintptr_t place;
  std::uintptr_t identity;
  Label label;
  bool is_send;
};

struct Transfers {
  std::array<Transfer, kMaxPending> pending;
  std::size_t count = 0;
  ShortLock lock;
};
constinit Transfers g_transfers{};

using Guard = std::lock_guard<ShortLock>;

void publish() {
  g_counts.transfers.store(static_cast<std::uint32_t>(g_transfers.count), std::memory_order_relaxed);
}

void remove(std::size_t at) {
  Transfer* const pending = g_transfers.pending.data();
  std::copy(pending + at + 1, pending + g_transfers.count, pending + at);
  --g_transfers.count;
  publish();
}

bool take(std::uintptr_t Transfer::* what, std::uintptr_t wanted, bool is_send, bool is_whole, Label& label) {
  const Guard guard(g_transfers.lock);
  for (std::size_t i = 0; i < g_transfers.count; ++i) {
    const Transfer& one = g_transfers.pending[i];
    if (one.*what != wanted || one.is_send != is_send) continue;
    if (is_whole && one.label.payload_bytes < 0) return false;
    label = one.label;
    remove(i);
    return true;
  }
  return false;
}

}  // namespace

void expect_transfer(std::uintptr_t place, std::uintptr_t identity, bool is_send, const Label& label) {
  // A thread that another one forks away while it is in here would stay in here for ever.
  static const int at_fork = pthread_atfork([] { g_transfers.lock.lock(); }, [] { g_transfers.lock.unlock(); },
                                            [] { g_transfers.lock.unlock(); });
  (void)at_fork;
  const Guard guard(g_transfers.lock);
  if (g_transfers.count == kMaxPending) remove(0);
  g_transfers.pending[g_transfers.count++] = {place, identity, label, is_send};
  publish();
}

bool take_transfer(std::uintptr_t place, bool is_send, Label& label) {
  return place != 0 && take(&Transfer::place, place, is_send, false, label);
}

bool take_transfer_of(std::uintptr_t identity, bool is_send, Label& label) {
  if (identity != 0 && take(&Transfer::identity, identity, is_send, false, label)) return true;
  g_counts.has_missed_identity.store(true, std::memory_order_relaxed);
  return false;
}

bool take_whole_transfer_of(std::uintptr_t identity, bool is_send, Label& label) {
  return identity != 0 && take(&Transfer::identity, identity, is_send, true, label);
}

void clear_transfers() {
  if (!has_transfers()) return;
  const Guard guard(g_transfers.lock);
  g_transfers.count = 0;
  publish();
}

}  // namespace smon_rt::bindings
