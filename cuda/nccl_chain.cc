#include "cuda/nccl_chain.h"

#include <sys/random.h>
#include <unistd.h>

#include <utility>

#include "base/dynamic_library.h"
#include "record/comm_handle.h"

namespace smon_rt::nccl {

namespace {

constexpr std::uint8_t kContextType = PairPool::kFirstType;
constexpr std::uint8_t kCallType = PairPool::kFirstType + 1;
constexpr std::uint8_t kOpType = PairPool::kFirstType + 2;
constexpr std::uint8_t kTransferType = PairPool::kFirstType + 3;
constexpr std::uint8_t kStepType = PairPool::kFirstType + 4;

// Of a slot: no handle has it.
constexpr std::uint32_t kBeingWritten = 0xffff'ffff;

std::uint64_t to_number(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

std::uint16_t make_nonce() {
  std::uint16_t nonce = 0;
  (void)!::getrandom(&nonce, sizeof(nonce), GRND_NONBLOCK);
  return nonce == 0 ? 1 : nonce;  // no handle may be null
}

/// NCCL's rule: a path or the name of a library, or what makes one.
Result<DynamicLibrary> open_plugin(const std::string& name) {
  Result<DynamicLibrary> library = DynamicLibrary::open(name);
  if (library || name.find('/') != std::string::npos || (name.starts_with("lib") && name.ends_with(".so"))) {
    return library;
  }
  Result<DynamicLibrary> by_word = DynamicLibrary::open("libnccl-profiler-" + name + ".so");
  return by_word ? std::move(by_word) : std::move(library);
}

}  // namespace

PairPool::PairPool(std::uint8_t type, std::size_t size, std::uint16_t nonce)
    : type_(type), size_(size), nonce_(nonce), slots_(std::make_unique<Slot[]>(size)) {}

std::uint8_t PairPool::type_of(const void* number) noexcept {
  return static_cast<std::uint8_t>(comm_handle::type_of(to_number(number)));
}

std::size_t PairPool::index_of(const void* number) noexcept {
  return comm_handle::index_of(to_number(number));
}

void* PairPool::add(Pair pair) noexcept {
  const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
  slots_[number % size_].ticket.store(kBeingWritten, std::memory_order_release);
  return write(number, pair);
}

void* PairPool::add_if_free(Pair pair) noexcept {
  for (std::size_t probe = 0; probe < size_; ++probe) {
    const std::uint64_t number = next_.fetch_add(1, std::memory_order_relaxed);
    std::uint32_t free = 0;
    if (slots_[number % size_].ticket.compare_exchange_strong(free, kBeingWritten, std::memory_order_acq_rel)) {
      return write(number, pair);
    }
  }
  return nullptr;
}

void* PairPool::write(std::uint64_t number, Pair pair) noexcept {
  Slot& slot = slots_[number % size_];
  const CommHandle made = comm_handle::make(nonce_, static_cast<comm_handle::Type>(type_), number, size_);
  slot.ours.store(pair.ours, std::memory_order_release);
  slot.theirs.store(pair.theirs, std::memory_order_release);
  slot.ticket.store(comm_handle::ticket_of(made), std::memory_order_release);  // pairs with the acquire in find()
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(made));
}

PairPool::Slot* PairPool::slot_of(const void* pointer) const noexcept {
  const CommHandle number = to_number(pointer);
  const std::uint32_t index = comm_handle::index_of(number);
  if (comm_handle::nonce_of(number) != nonce_ || type_of(pointer) != type_ || index >= size_) return nullptr;
  return &slots_[index];
}

bool PairPool::find(const void* number, Pair* pair) const noexcept {
  const Slot* slot = slot_of(number);
  if (slot == nullptr) return false;
  const std::uint32_t ticket = comm_handle::ticket_of(to_number(number));
  if (slot->ticket.load(std::memory_order_acquire) != ticket) return false;
  pair->ours = slot->ours.load(std::memory_order_acquire);
  pair->theirs = slot->theirs.load(std::memory_order_acquire);
  return slot->ticket.load(std::memory_order_relaxed) == ticket;  // the acquire loads above keep it below them
}

bool PairPool::free(const void* number) noexcept {
  Slot* slot = slot_of(number);
  std::uint32_t ticket = comm_handle::ticket_of(to_number(number));
  return slot != nullptr && slot->ticket.compare_exchange_strong(ticket, 0, std::memory_order_acq_rel);
}

template <typename Event>
std::unique_ptr<Chain<Event>> Chain<Event>::load(const std::string& name, const Plugin& ours, std::string& why_not) {
  const Result<DynamicLibrary> library = open_plugin(name);
  if (!library) {
    why_not = library.error().message;
    return nullptr;
  }
  const std::string symbol = "ncclProfiler_v" + std::to_string(Event::kVersion);
  const auto* theirs = static_cast<const Plugin*>(library->find(symbol.c_str()));
  if (theirs == nullptr) {
    why_not = name + " has no " + symbol + ", which this NCCL speaks with us";
    return nullptr;
  }
  if (theirs == &ours) {
    why_not = name + " is smon_rt itself";
    return nullptr;
  }
  const auto& callbacks = theirs->callbacks;
  if (theirs->init == nullptr || callbacks.startEvent == nullptr || callbacks.stopEvent == nullptr ||
      callbacks.recordEventState == nullptr || callbacks.finalize == nullptr) {
    why_not = symbol + " of " + name + " lacks a function";
    return nullptr;
  }
  return std::unique_ptr<Chain>(new Chain(*theirs, make_nonce()));
}

template <typename Event>
Chain<Event>::Chain(const Plugin& theirs, std::uint16_t nonce)
    : theirs_(theirs),
      contexts_(kContextType, kContexts, nonce),
      calls_(kCallType, 16'384, nonce),
      ops_(kOpType, 16'384, nonce),
      transfers_(kTransferType, 32'768, nonce),
      steps_(kStepType, 65'536, nonce) {}

template <typename Event>
typename Chain<Event>::Mask* Chain<Event>::mask_of(const int* library_mask, std::size_t* index) noexcept {
  for (*index = 0; *index < masks_.size(); ++*index) {
    Mask& mask = masks_[*index];
    const int* found = nullptr;
    if (mask.library.compare_exchange_strong(found, library_mask, std::memory_order_acq_rel) || found == library_mask) {
      return &mask;
    }
  }
  return nullptr;
}

template <typename Event>
typename Chain<Event>::Opened Chain<Event>::open(const int* library_mask, const Communicator& communicator) noexcept {
  Opened opened;
  Mask* mask = library_mask == nullptr ? nullptr : mask_of(library_mask, &opened.mask);
  if (mask == nullptr) return opened;
  const auto& [id, name, nodes, ranks, rank, logger] = communicator;
  void* context = nullptr;
  Status status;
  if constexpr (Event::kVersion == 4) {
    status = theirs_.init(&context, &mask->wanted, name, id, nodes, ranks, rank, logger);
  } else {
    status = theirs_.init(&context, id, &mask->wanted, name, nodes, ranks, rank, logger);
  }
  if (status != kSuccess) return opened;
  opened.context = context;
  opened.wanted = &mask->wanted;
  mask->seen.store(__atomic_load_n(&mask->wanted, __ATOMIC_RELAXED), std::memory_order_relaxed);
  return opened;
}

template <typename Event>
void* Chain<Event>::join(void* our_context, const Opened& opened) noexcept {
  if (opened.wanted == nullptr) return our_context;
  void* joined = contexts_.add_if_free({our_context, opened.context});
  if (joined == nullptr) {
    (void)theirs_.callbacks.finalize(opened.context);
    return our_context;
  }
  mask_of_context_[PairPool::index_of(joined)].store(static_cast<std::uint8_t>(opened.mask), std::memory_order_relaxed);
  return joined;
}

template <typename Event>
typename Chain<Event>::Mask& Chain<Event>::mask_of_context(const void* context) noexcept {
  return masks_[mask_of_context_[PairPool::index_of(context) % kContexts].load(std::memory_order_relaxed)];
}

template <typename Event>
bool Chain<Event>::has_changed(const void* context) noexcept {
  if (PairPool::type_of(context) != kContextType) return false;
  Mask& mask = mask_of_context(context);
  const int wanted = __atomic_load_n(&mask.wanted, __ATOMIC_RELAXED);
  return mask.seen.load(std::memory_order_relaxed) != wanted &&
         mask.seen.exchange(wanted, std::memory_order_relaxed) != wanted;
}

template <typename Event>
Pair Chain<Event>::split(void* handle) const noexcept {
  Pair pair;
  switch (PairPool::type_of(handle)) {
    case kCallType:
      if (calls_.find(handle, &pair)) return pair;
      break;
    case kOpType:
      if (ops_.find(handle, &pair)) return pair;
      break;
    case kTransferType:
      if (transfers_.find(handle, &pair)) return pair;
      break;
    case kStepType:
      if (steps_.find(handle, &pair)) return pair;
      break;
    default:
      break;
  }
  return {handle, nullptr};
}

template <typename Event>
void* Chain<Event>::to_theirs(void* parent, bool is_foreign) const noexcept {
  // Another process's means as little to them as it would without us.
  return is_foreign ? parent : split(parent).theirs;
}

template <typename Event>
void* Chain<Event>::start(void* context, const Event& event, Event& ours, void** our_context) noexcept {
  ours.parentObj = split(event.parentObj).ours;
  Pair contexts;
  if (!contexts_.find(context, &contexts)) {
    *our_context = context;
    return nullptr;
  }
  *our_context = contexts.ours;
  const auto type = static_cast<std::uint64_t>(event.type);
  if ((static_cast<std::uint64_t>(__atomic_load_n(&mask_of_context(context).wanted, __ATOMIC_RELAXED)) & type) == 0) {
    return nullptr;
  }
  Event copy = event;
  copy.parentObj = to_theirs(event.parentObj, type == kProxyOpEvent && event.proxyOp.pid != ::getpid());
  if constexpr (Event::kVersion > 4) {
    if (type == kCollEvent) copy.coll.parentGroup = to_theirs(event.coll.parentGroup, false);
    if (type == kP2pEvent) copy.p2p.parentGroup = to_theirs(event.p2p.parentGroup, false);
  }
  void* theirs = nullptr;
  const Status status = theirs_.callbacks.startEvent(contexts.theirs, &theirs, &copy);
  return status == kSuccess ? theirs : nullptr;
}

template <typename Event>
void* Chain<Event>::join(std::uint64_t type, Pair handles) noexcept {
  if (handles.theirs == nullptr) return handles.ours;
  switch (type) {
    case kCollEvent:
    case kP2pEvent:
    case kCeCollEvent:
      return ops_.add(handles);
    case kProxyOpEvent:
    case kKernelChEvent:
      return transfers_.add(handles);
    case kProxyStepEvent:
    case kProxyCtrlEvent:
    case kNetPluginEvent:
      return steps_.add(handles);
    default:
      return calls_.add(handles);
  }
}

template <typename Event>
void* Chain<Event>::stop(void* handle) noexcept {
  const Pair pair = split(handle);
  if (pair.theirs != nullptr) (void)theirs_.callbacks.stopEvent(pair.theirs);
  return pair.ours;
}

template <typename Event>
void* Chain<Event>::record(void* handle, EventState state, StateArgs* args) noexcept {
  const Pair pair = split(handle);
  if (pair.theirs != nullptr) {
    (void)theirs_.callbacks.recordEventState(pair.theirs, state, args);
  }
  return pair.ours;
}

template <typename Event>
void* Chain<Event>::finalize(void* context) noexcept {
  Pair contexts;
  if (!contexts_.find(context, &contexts)) return context;
  if (!contexts_.free(context)) return contexts.ours;
  (void)theirs_.callbacks.finalize(contexts.theirs);
  return contexts.ours;
}

template class Chain<EventV4>;
template class Chain<EventV5>;
template class Chain<EventV6>;

}  // namespace smon_rt::nccl
