#include "bindings/collective_table.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "bindings/short_lock.h"
#include "bindings/thread_state.h"

namespace smon_rt::bindings {

namespace {

/// A job that has more works open within a step loses the oldest early.
constexpr std::size_t kMaxPending = 4096;
constexpr std::uint16_t kOtherThread = 1U << 6;  // of span_flag in format/span.h
constexpr std::uint16_t kNotWaited = 1U << 9;

/// Kinds of which a span that someone else opened around the call is the operation itself.
constexpr std::uint32_t kCommunication = [] {
  std::uint32_t kinds = 1U << SMON_COLLECTIVE;
  for (int kind = SMON_FORWARD_SEND; kind <= SMON_SEPARATE_GRADS_ALL_REDUCE; ++kind) kinds |= 1U << kind;
  return kinds;
}();

struct IssuedBefore {
  const void* group;
  std::int64_t op_id;
  Begun begun;
  std::uint64_t step;
};

struct Awaited {
  smon_token token;
  std::int64_t issued_ticks;
  PyObject* reference;  // owned
  std::uintptr_t address;
  std::uint64_t step;
  bool is_reduction;
};

/// All short: what is looked for is most often among the last. Keys are apart from what they are of, so that a line of
/// memory has eight of them.
struct alignas(64) Table {
  std::vector<smon_token> own;  // open spans of operations
  std::vector<std::uintptr_t> keys;
  std::vector<Awaited> awaited;
  std::uint64_t step = 0;
  ShortLock lock;
  std::vector<IssuedBefore> issued;
  std::vector<PyObject*> left;  // owned, by those who had no GIL
  void (*let_go)(PyObject*) = nullptr;
};

Table* g_table = nullptr;  // leaked: threads come here until the process is gone

Table& table() {
  return *g_table;
}

using Guard = std::lock_guard<ShortLock>;

/// With the GIL, and without the lock.
void let_go(PyObject* reference) {
  if (reference != nullptr) table().let_go(reference);
}

/// Under the lock. Of more than fit, the memory is lost: nothing that is still used goes.
void leave(Table& table, PyObject* reference) {
  if (reference != nullptr && table.left.size() < kMaxPending) table.left.push_back(reference);
}

void publish(const Table& table) {
  g_counts.issued.store(static_cast<std::uint32_t>(table.issued.size()), std::memory_order_relaxed);
  g_counts.awaited.store(static_cast<std::uint32_t>(table.awaited.size()), std::memory_order_relaxed);
}

template <typename Vector, typename Predicate>
auto find_last(Vector& items, Predicate&& is_wanted) {
  const auto found = std::find_if(items.rbegin(), items.rend(), is_wanted);
  return found == items.rend() ? items.end() : std::prev(found.base());
}

[[gnu::hot]] void forget_own(Table& table, smon_token token) {
  const auto found = find_last(table.own, [&](smon_token own) { return own == token; });
  if (found == table.own.end()) return;
  *found = table.own.back();
  table.own.pop_back();
}

/// Takes one out of the table. Its reference goes to the caller, who lets go of it without the lock.
[[gnu::hot]] Awaited take(Table& table, std::size_t at) {
  const Awaited taken = table.awaited[at];
  table.awaited.erase(table.awaited.begin() + static_cast<std::ptrdiff_t>(at));
  table.keys.erase(table.keys.begin() + static_cast<std::ptrdiff_t>(at));
  if (taken.address != 0) g_counts.addresses.fetch_sub(1, std::memory_order_relaxed);
  publish(table);
  return taken;
}

constexpr std::size_t kNowhere = ~std::size_t{0};
/// The last of two keys; 0 is none.
[[gnu::hot]] std::size_t find_key(const Table& table, std::uintptr_t key, std::uintptr_t other_key) {
  for (std::size_t i = table.keys.size(); i-- > 0;) {
    if (table.keys[i] == key || (table.keys[i] == other_key && other_key != 0)) return i;
  }
  return kNowhere;
}

/// The last that is so.
template <typename Predicate>
std::size_t find_awaited(const Table& table, Predicate&& is_wanted) {
  for (std::size_t i = table.awaited.size(); i-- > 0;) {
    if (is_wanted(table.awaited[i])) return i;
  }
  return kNowhere;
}

void end_as_issued(Table& table, const Awaited& taken) {
  forget_own(table, taken.token);
  smon_end_at(taken.token, taken.issued_ticks, SMON_TIME_HOST, kNotWaited);
}

/// Ends all that `is_wanted`, one after the other: their references are let go of without the lock.
template <typename Predicate, typename End>
void end_each(Predicate&& is_wanted, End&& end) {
  while (has_awaited()) {
    Awaited taken{};
    {
      Table& all = table();
      const Guard guard(all.lock);
      const auto found =
          std::find_if(all.awaited.begin(), all.awaited.end(), [&](const Awaited& one) { return is_wanted(all, one); });
      if (found == all.awaited.end()) return;
      taken = take(all, static_cast<std::size_t>(found - all.awaited.begin()));
      end(all, taken);
    }
    let_go(taken.reference);
  }
}

}  // namespace

[[gnu::hot]] smon_token begin_operation(int kind, const smon_span_ids& ids) {
  const smon_token outer = smon_find_open(kCommunication);
  Table& all = table();
  const Guard guard(all.lock);
  if (outer != 0 && find_last(all.own, [&](smon_token own) { return own == outer; }) == all.own.end()) {
    smon_annotate(outer, &ids);
    return 0;
  }
  if (all.own.size() >= 2 * kMaxPending) return 0;
  const smon_token token = smon_begin(static_cast<smon_kind>(kind), &ids);
  if (token != 0) all.own.push_back(token);
  return token;
}

void keep_issued(const void* group, std::int64_t op_id, const Begun& begun) {
  Table& all = table();
  const Guard guard(all.lock);
  if (all.issued.size() >= kMaxPending) {
    forget_own(all, begun.token);
    smon_abort(begun.token);
    return;
  }
  all.issued.push_back({group, op_id, begun, all.step});
  publish(all);
}

Begun take_issued(const void* group, std::int64_t op_id) {
  Table& all = table();
  const Guard guard(all.lock);
  const auto found =
      find_last(all.issued, [&](const IssuedBefore& one) { return one.group == group && one.op_id == op_id; });
  if (found == all.issued.end()) return {};
  const Begun begun = found->begun;
  all.issued.erase(found);
  publish(all);
  return begun;
}

namespace {

/// Makes room for what comes under this key. References are let go of without the lock.
[[gnu::noinline, gnu::cold]] void make_room(Table& all, std::size_t same, std::array<PyObject*, 2>& displaced) {
  // One work of several operations, as of coalesced ones; or of another one that lay there, and is gone.
  if (same != kNowhere) {
    const Awaited taken = take(all, same);
    end_as_issued(all, taken);
    displaced[0] = taken.reference;
  }
  if (all.awaited.size() >= kMaxPending) {
    const Awaited taken = take(all, 0);
    end_as_issued(all, taken);
    displaced[1] = taken.reference;
  }
}

/// Returns what it displaced.
[[gnu::hot]] std::array<PyObject*, 2> put(Table& all, std::uintptr_t key, const Begun& begun, PyObject* reference,
                                          std::int64_t now_ticks) {
  std::array<PyObject*, 2> displaced{};
  const std::size_t same = find_key(all, key, 0);
  if (same != kNowhere || all.awaited.size() >= kMaxPending) [[unlikely]]
    make_room(all, same, displaced);
  all.keys.push_back(key);
  all.awaited.push_back({begun.token, now_ticks, reference, begun.address, all.step, begun.origin == Origin::kEngine});
  if (begun.address != 0) g_counts.addresses.fetch_add(1, std::memory_order_relaxed);
  publish(all);
  return displaced;
}

/// Nobody asks when an operation had been issued of which nothing is kept.
std::int64_t issued_ticks(const Begun& begun) {
  return begun.is_unsampled ? 0 : smon_ticks();
}

}  // namespace

void await(std::uintptr_t key, const Begun& begun, PyObject* reference) {
  const std::int64_t now_ticks = issued_ticks(begun);
  std::array<PyObject*, 2> displaced;
  {
    Table& all = table();
    const Guard guard(all.lock);
    displaced = put(all, key, begun, reference, now_ticks);
  }
  for (PyObject* one : displaced) let_go(one);
}

[[gnu::hot]] void await_without_python(std::uintptr_t key, const Begun& begun) {
  const std::int64_t now_ticks = issued_ticks(begun);
  Table& all = table();
  const Guard guard(all.lock);
  for (PyObject* one : put(all, key, begun, nullptr, now_ticks)) leave(all, one);
}

void leave_reference(PyObject* reference) {
  Table& all = table();
  const Guard guard(all.lock);
  leave(all, reference);
}

std::uintptr_t make_key() {
  static std::atomic<std::uintptr_t> next{1};  // odd: no object lies there
  return next.fetch_add(2, std::memory_order_relaxed);
}

namespace {

/// Takes the one that is found, all 0 if there is none. Its reference is the caller's.
template <bool must_end, typename Find>
Awaited take_found(Find&& find) {
  Table& all = table();
  const Guard guard(all.lock);
  const std::size_t found = find(all);
  if (found == kNowhere) return {};
  const Awaited taken = take(all, found);
  if constexpr (must_end) end_as_issued(all, taken);
  return taken;
}

smon_token token_of(const Awaited& taken) {
  let_go(taken.reference);
  return taken.token;
}

}  // namespace

[[gnu::hot]] smon_token take_awaited(std::uintptr_t key, std::uintptr_t other_key) {
  if (!has_awaited()) return 0;
  return token_of(take_found<false>([&](const Table& all) { return find_key(all, key, other_key); }));
}

smon_token take_awaited(std::uintptr_t key) {
  return take_awaited(key, 0);
}

smon_token take_awaited_at(std::uintptr_t address) {
  if (address == 0 || !has_addresses()) return 0;
  return token_of(take_found<false>(
      [&](const Table& all) { return find_awaited(all, [&](const Awaited& one) { return one.address == address; }); }));
}

void end_dropped(const PyObject* reference) {
  token_of(take_found<true>([&](const Table& all) {
    return find_awaited(all, [&](const Awaited& one) { return one.reference == reference; });
  }));
}

void forget_awaited(std::uintptr_t key) {
  if (!has_awaited()) return;
  leave_reference(take_found<true>([&](const Table& all) { return find_key(all, key, 0); }).reference);
}

[[gnu::hot]] void end_operation(smon_token token, smon_time_source source, std::uint16_t flags) {
  Table& all = table();
  const Guard guard(all.lock);
  forget_own(all, token);
  smon_end_at(token, 0, source, flags);
}

void abort_operation(smon_token token) {
  Table& all = table();
  const Guard guard(all.lock);
  forget_own(all, token);
  smon_abort(token);
}

void end_reductions() {
  end_each([](const Table&, const Awaited& one) { return one.is_reduction; },
           [](Table& all, const Awaited& one) {
             forget_own(all, one.token);
             smon_end_at(one.token, 0, SMON_TIME_WAIT_RETURN, kOtherThread);
           });
}

namespace {

/// What this thread issued last has failed, or is still being issued: it ages with the others.
void give_up_place(std::uint32_t recording) {
  const Issued issued = std::exchange(t_thread.issued, {});
  if (issued.begun.token != 0 && issued.recording == recording) keep_issued(issued.group, issued.op_id, issued.begun);
}

/// nullptr: no more.
PyObject* take_left() {
  Table& all = table();
  const Guard guard(all.lock);
  if (all.left.empty()) return nullptr;
  PyObject* left = all.left.back();
  all.left.pop_back();
  return left;
}

void let_go_of_left() {
  while (PyObject* left = take_left()) let_go(left);
}

}  // namespace

void end_unwaited() {
  give_up_place(g_counts.recording.load(std::memory_order_relaxed));
  {
    Table& all = table();
    const Guard guard(all.lock);
    ++all.step;
    // Those that raised: torch called no post-hook.
    std::erase_if(all.issued, [&](const IssuedBefore& one) {
      if (one.step + 1 >= all.step) return false;
      forget_own(all, one.begun.token);
      smon_abort(one.begun.token);
      return true;
    });
    publish(all);
  }
  end_each([](const Table& all, const Awaited& one) { return one.step + 1 < all.step; }, end_as_issued);
  let_go_of_left();
}

void end_all_operations() {
  give_up_place(t_thread.issued.recording);  // hooks act in none any more
  {
    Table& all = table();
    const Guard guard(all.lock);
    for (const IssuedBefore& one : all.issued) smon_abort(one.begun.token);
    all.issued.clear();
    publish(all);
  }
  end_each([](const Table&, const Awaited&) { return true; }, end_as_issued);
  let_go_of_left();
  const Guard guard(table().lock);
  table().own.clear();
}

void set_up_table(void (*let_go)(PyObject*)) {
  if (g_table != nullptr) return;
  g_table = new Table;
  g_table->let_go = let_go;
  // Never more than that, so nothing is allocated, and nothing thrown, in a step.
  g_table->own.reserve(2 * kMaxPending);
  g_table->keys.reserve(kMaxPending);
  g_table->awaited.reserve(kMaxPending);
  g_table->issued.reserve(kMaxPending);
  g_table->left.reserve(kMaxPending);
  // A thread that another one forks away while it is in here would leave the child a table in pieces. Of what is under
  // way in the parent the child's hooks record nothing.
  pthread_atfork([] { g_table->lock.lock(); }, [] { g_table->lock.unlock(); },
                 [] {
                   g_counts.recording.store(0, std::memory_order_relaxed);
                   g_table->lock.unlock();
                 });
}

}  // namespace smon_rt::bindings
