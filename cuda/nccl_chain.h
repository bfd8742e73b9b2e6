#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>

#include "cuda/nccl_profiler_types.h"

namespace smon_rt::nccl {

/// What NCCL carries for two plug-ins.
struct Pair {
  void* ours = nullptr;
  void* theirs = nullptr;
};

/// Room for what NCCL carries for two plug-ins: it gets a number, which is checked whenever it comes back, as ours are
/// (comm_handle.h), and which none of ours can be.
///
/// Threading: any thread, lock-free. When full: the oldest ones go, and are then nobody's.
class PairPool {
 public:
  static constexpr std::uint8_t kFirstType = 8;  // above those of comm_handle

  PairPool(std::uint8_t type, std::size_t size, std::uint16_t nonce);

  void* add(Pair pair) noexcept;
  /// Only where nothing is in the way; nullptr: something is everywhere.
  void* add_if_free(Pair pair) noexcept;
  /// Whether the number is one of this pool, and which two it stands for.
  bool find(const void* number, Pair* pair) const noexcept;
  /// Nobody's from now on. False: it was already.
  bool free(const void* number) noexcept;

  static std::uint8_t type_of(const void* number) noexcept;
  static std::size_t index_of(const void* number) noexcept;

 private:
  struct Slot {
    std::atomic<std::uint32_t> ticket{0};  // 0: nobody's
    std::atomic<void*> ours{nullptr};
    std::atomic<void*> theirs{nullptr};
  };
  Slot* slot_of(const void* number) const noexcept;
  void* write(std::uint64_t number, Pair pair) noexcept;

  const std::uint8_t type_;
  const std::size_t size_;
  const std::uint16_t nonce_;
  std::unique_ptr<Slot[]> slots_;
  std::atomic<std::uint64_t> next_{0};
};

/// Another profiler plug-in, which the job has chosen, behind ours: it is called as if NCCL had loaded it alone, with
/// what it asks for and with its own contexts and handles, by the version of the interface that NCCL speaks with us.
/// What it answers is never ours nor NCCL's: where it fails, it is left out, and where we do, it goes on.
///
/// Threading: any thread, as NCCL calls. Cost: besides theirs, a copy of the event and a slot of a pool; no lock, no
/// allocation. Made at the first communicator, and leaked.
template <typename Event>
class Chain {
 public:
  using Plugin = std::conditional_t<Event::kVersion == 4, PluginV4, PluginAfterV4<Event>>;

  /// By a name as NCCL takes them. Null, and why: there is none, or it does not speak this version.
  static std::unique_ptr<Chain> load(const std::string& name, const Plugin& ours, std::string& why_not);

  /// What a plug-in is told of a communicator.
  struct Communicator {
    std::uint64_t id;
    const char* name;
    int node_count, rank_count, rank;
    Logger logger;
  };
  struct Opened {
    void* context = nullptr;      // null: they do without it
    const int* wanted = nullptr;  // their mask, as they set it
    std::size_t mask = 0;
  };
  /// In the libnccl with this mask.
  Opened open(const int* library_mask, const Communicator& communicator) noexcept;
  /// What NCCL gets as context.
  void* join(void* our_context, const Opened& opened) noexcept;

  /// Theirs of an event; `ours` becomes what we are to be told of it.
  void* start(void* context, const Event& event, Event& ours, void** our_context) noexcept;
  /// What NCCL gets as handle.
  void* join(std::uint64_t type, Pair handles) noexcept;
  /// Each gives our handle or context.
  void* stop(void* handle) noexcept;
  void* record(void* handle, EventState state, StateArgs* args) noexcept;
  void* finalize(void* context) noexcept;

  /// Whether they ask for something else than at the last call.
  bool has_changed(const void* context) noexcept;

 private:
  struct Mask {
    std::atomic<const int*> library{nullptr};
    int wanted = 0;  // theirs to write
    std::atomic<int> seen{0};
  };
  static constexpr std::size_t kContexts = 1024;

  explicit Chain(const Plugin& theirs, std::uint16_t nonce);
  Mask* mask_of(const int* library_mask, std::size_t* index) noexcept;
  Mask& mask_of_context(const void* context) noexcept;
  Pair split(void* handle) const noexcept;
  /// A parent as they know it.
  void* to_theirs(void* parent, bool is_foreign) const noexcept;

  const Plugin& theirs_;
  std::array<Mask, 8> masks_{};
  std::array<std::atomic<std::uint8_t>, kContexts> mask_of_context_{};
  PairPool contexts_, calls_, ops_, transfers_, steps_;
};

extern template class Chain<EventV4>;
extern template class Chain<EventV5>;
extern template class Chain<EventV6>;

}  // namespace smon_rt::nccl
