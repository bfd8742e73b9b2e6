#include "bindings/collective_table.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <new>
#include <utility>

namespace smon_rt::bindings {

namespace {

/// A job that has more works open within a step loses the oldest early; labels beyond it, that nobody took, go.
constexpr std::size_t kMaxPending = 4096;
constexpr std::uint16_t kOtherThread = 1U << 6;  // of span_flag in format/span.h
constexpr std::uint16_t kNotWaited = 1U << 9;

/// Kinds of which a span that someone else opened around the call is the operation itself.
constexpr std::uint32_t kCommunication = [] {
  std::uint32_t kinds = 1U << SMON_COLLECTIVE;
  for (int kind = SMON_FORWARD_SEND; kind <= SMON_SEPARATE_GRADS_ALL_REDUCE; ++kind) kinds |= 1U << kind;
  return kinds;
}();

struct Issued {
  const void* group;
  std::uint64_t op_id;
  Begun begun;
  std::uint64_t step;
};

struct Awaited {
  std::uintptr_t key;
  smon_token token;
  std::int64_t issued_ticks;
  PyObject* reference;  // owned
  std::uintptr_t address;
  std::uint64_t step;
  bool is_reduction;
};

struct Transfer {
  std::uintptr_t place;
  bool is_send;
  Label label;
};

/// All short: what is looked for is most often among the last.
struct Table {
  std::mutex lock;
  std::vector<smon_token> own;  // open spans of operations
  std::vector<Issued> issued;
  std::vector<Awaited> awaited;
  std::vector<Transfer> transfers;
  std::vector<PyObject*> left_by_threads;  // owned: last works of threads that have ended
  std::uint64_t step = 0;
};

// Leaked: threads come here until the process is gone.
Table& table() {
  static Table* const table = [] {
    auto* made = new Table;
    // Never more than that, so nothing is allocated, and nothing thrown, in a step.
    made->own.reserve(2 * kMaxPending);
    made->issued.reserve(kMaxPending);
    made->awaited.reserve(kMaxPending);
    made->transfers.reserve(kMaxPending);
    made->left_by_threads.reserve(kMaxPending);
    // A thread that another one forks away while it is in here would stay in here for ever.
    pthread_atfork(nullptr, nullptr, [] { new (&smon_rt::bindings::table().lock) std::mutex; });
    return made;
  }();
  return *table;
}

// Readable without the lock, so that what is not there costs nothing to look for.
std::atomic<std::size_t> g_issued_count{0};
std::atomic<std::size_t> g_awaited_count{0};
std::atomic<std::size_t> g_address_count{0};
std::atomic<std::size_t> g_transfer_count{0};

using Guard = std::lock_guard<std::mutex>;

void publish(Table& table) {
  g_issued_count.store(table.issued.size(), std::memory_order_relaxed);
  g_awaited_count.store(table.awaited.size(), std::memory_order_relaxed);
}

template <typename Vector, typename Predicate>
auto find_last(Vector& items, Predicate&& is_wanted) {
  const auto found = std::find_if(items.rbegin(), items.rend(), is_wanted);
  return found == items.rend() ? items.end() : std::prev(found.base());
}

void forget_own(Table& table, smon_token token) {
  const auto found = find_last(table.own, [&](smon_token own) { return own == token; });
  if (found != table.own.end()) table.own.erase(found);
}

/// Takes one out of the table. Its reference goes to the caller, who lets go of it without the lock.
Awaited take(Table& table, std::vector<Awaited>::iterator at) {
  const Awaited taken = *at;
  table.awaited.erase(at);
  if (taken.address != 0) g_address_count.fetch_sub(1, std::memory_order_relaxed);
  publish(table);
  return taken;
}

void end_as_issued(Table& table, const Awaited& taken) {
  forget_own(table, taken.token);
  smon_end_at(taken.token, taken.issued_ticks, SMON_TIME_HOST, kNotWaited);
}

/// Ends all that `is_wanted`, one after the other: their references are let go of without the lock.
template <typename Predicate, typename End>
void end_each(Predicate&& is_wanted, End&& end) {
  while (g_awaited_count.load(std::memory_order_relaxed) != 0) {
    Awaited taken{};
    {
      Table& all = table();
      const Guard guard(all.lock);
      const auto found =
          std::find_if(all.awaited.begin(), all.awaited.end(), [&](const Awaited& one) { return is_wanted(all, one); });
      if (found == all.awaited.end()) return;
      taken = take(all, found);
      end(all, taken);
    }
    Py_XDECREF(taken.reference);
  }
}

/// At the end of a thread its last work is left to whoever holds the GIL next.
struct LastWork {
  PyObject* work = nullptr;
  ~LastWork() {
    if (work == nullptr) return;
    Table& all = table();
    const Guard guard(all.lock);
    if (all.left_by_threads.size() < kMaxPending) all.left_by_threads.push_back(work);
  }
};
thread_local LastWork t_last_work;

}  // namespace

smon_token begin_operation(int kind, const smon_span_ids& ids) {
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

void keep_issued(const void* group, std::uint64_t op_id, const Begun& begun) {
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

Begun take_issued(const void* group, std::uint64_t op_id) {
  Table& all = table();
  const Guard guard(all.lock);
  const auto found = find_last(all.issued, [&](const Issued& one) { return one.group == group && one.op_id == op_id; });
  if (found == all.issued.end()) return {};
  const Begun begun = found->begun;
  all.issued.erase(found);
  publish(all);
  return begun;
}

bool has_issued() {
  return g_issued_count.load(std::memory_order_relaxed) != 0;
}

void await(std::uintptr_t key, const Begun& begun, PyObject* reference) {
  const std::int64_t now_ticks = smon_ticks();
  PyObject* let_go = nullptr;
  PyObject* let_go_oldest = nullptr;
  {
    Table& all = table();
    const Guard guard(all.lock);
    // One work of several operations, as of coalesced ones; or of another one that lay there, and is gone.
    const auto same = find_last(all.awaited, [&](const Awaited& one) { return one.key == key; });
    if (same != all.awaited.end()) {
      const Awaited taken = take(all, same);
      end_as_issued(all, taken);
      let_go = taken.reference;
    }
    if (all.awaited.size() >= kMaxPending) {
      const Awaited taken = take(all, all.awaited.begin());
      end_as_issued(all, taken);
      let_go_oldest = taken.reference;
    }
    all.awaited.push_back(
        {key, begun.token, now_ticks, reference, begun.address, all.step, begun.origin == Origin::kEngine});
    if (begun.address != 0) g_address_count.fetch_add(1, std::memory_order_relaxed);
    publish(all);
  }
  Py_XDECREF(let_go);
  Py_XDECREF(let_go_oldest);
}

std::uintptr_t make_key() {
  static std::atomic<std::uintptr_t> next{1};  // odd: no object lies there
  return next.fetch_add(2, std::memory_order_relaxed);
}

namespace {

template <typename Predicate>
smon_token take_awaited_if(Predicate&& is_wanted) {
  Awaited taken{};
  {
    Table& all = table();
    const Guard guard(all.lock);
    const auto found = find_last(all.awaited, is_wanted);
    if (found == all.awaited.end()) return 0;
    taken = take(all, found);
  }
  Py_XDECREF(taken.reference);
  return taken.token;
}

}  // namespace

smon_token take_awaited(std::uintptr_t key) {
  if (g_awaited_count.load(std::memory_order_relaxed) == 0) return 0;
  return take_awaited_if([&](const Awaited& one) { return one.key == key; });
}

smon_token take_awaited_at(std::uintptr_t address) {
  if (address == 0 || !has_addresses()) return 0;
  return take_awaited_if([&](const Awaited& one) { return one.address == address; });
}

bool has_addresses() {
  return g_address_count.load(std::memory_order_relaxed) != 0;
}

void end_dropped(const PyObject* reference) {
  Awaited taken{};
  {
    Table& all = table();
    const Guard guard(all.lock);
    const auto found = find_last(all.awaited, [&](const Awaited& one) { return one.reference == reference; });
    if (found == all.awaited.end()) return;
    taken = take(all, found);
    end_as_issued(all, taken);
  }
  Py_XDECREF(taken.reference);
}

void end_operation(smon_token token, smon_time_source source, std::uint16_t flags) {
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

void end_unwaited() {
  PyObject* left = nullptr;
  {
    Table& all = table();
    const Guard guard(all.lock);
    ++all.step;
    // Those that raised: torch called no post-hook.
    std::erase_if(all.issued, [&](const Issued& one) {
      if (one.step + 1 >= all.step) return false;
      forget_own(all, one.begun.token);
      smon_abort(one.begun.token);
      return true;
    });
    publish(all);
    if (!all.left_by_threads.empty()) {  // one a step: threads seldom end
      left = all.left_by_threads.back();
      all.left_by_threads.pop_back();
    }
  }
  end_each([](const Table& all, const Awaited& one) { return one.step + 1 < all.step; }, end_as_issued);
  Py_XDECREF(left);
  keep_last_work(nullptr);
}

void end_all_operations() {
  {
    Table& all = table();
    const Guard guard(all.lock);
    for (const Issued& one : all.issued) smon_abort(one.begun.token);
    all.issued.clear();
    publish(all);
  }
  end_each([](const Table&, const Awaited&) { return true; }, end_as_issued);
  {
    Table& all = table();
    const Guard guard(all.lock);
    all.own.clear();
  }
  keep_last_work(nullptr);
}

void expect_transfer(std::uintptr_t place, bool is_send, const Label& label) {
  Table& all = table();
  const Guard guard(all.lock);
  if (all.transfers.size() >= kMaxPending) all.transfers.erase(all.transfers.begin());
  all.transfers.push_back({place, is_send, label});
  g_transfer_count.store(all.transfers.size(), std::memory_order_relaxed);
}

bool take_transfer(std::uintptr_t place, bool is_send, Label& label) {
  Table& all = table();
  const Guard guard(all.lock);
  const auto found = std::find_if(all.transfers.begin(), all.transfers.end(),
                                  [&](const Transfer& one) { return one.place == place && one.is_send == is_send; });
  if (found == all.transfers.end()) return false;
  label = found->label;
  all.transfers.erase(found);
  g_transfer_count.store(all.transfers.size(), std::memory_order_relaxed);
  return true;
}

bool has_transfers() {
  return g_transfer_count.load(std::memory_order_relaxed) != 0;
}

void clear_transfers() {
  if (!has_transfers()) return;
  Table& all = table();
  const Guard guard(all.lock);
  all.transfers.clear();
  g_transfer_count.store(0, std::memory_order_relaxed);
}

void keep_last_work(PyObject* work) {
  Py_XINCREF(work);
  Py_XDECREF(std::exchange(t_last_work.work, work));
}

void let_go_of_last_work(const PyObject* work) {
  if (t_last_work.work == work) keep_last_work(nullptr);
}

}  // namespace smon_rt::bindings
