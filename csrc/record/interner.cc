#include "record/interner.h"

namespace smon_rt {

namespace {

constexpr std::size_t kMaxIds = 0xffff;

template <typename Item>
std::vector<Item> since(const std::vector<Item>& items, std::size_t n) {
  return n < items.size() ? std::vector<Item>(items.begin() + static_cast<std::ptrdiff_t>(n), items.end())
                          : std::vector<Item>();
}

/// No longer than a name may be, and no character of UTF-8 in halves.
std::string_view shortened(std::string_view text) {
  if (text.size() <= Interner::kMaxNameBytes) return text;
  std::size_t end = Interner::kMaxNameBytes;
  const auto continues = [&](std::size_t at) { return (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80; };
  while (end > Interner::kMaxNameBytes - 4 && continues(end)) --end;
  return text.substr(0, end);
}

}  // namespace

std::uint16_t Interner::name(std::string_view text) {
  text = shortened(text);
  const std::lock_guard lock(mutex_);
  if (const auto found = name_ids_.find(text); found != name_ids_.end()) return found->second;
  are_names_full_ = are_names_full_ || names_.size() == kMaxIds || names_bytes_ + text.size() > kMaxNamesBytes;
  if (are_names_full_) return 0;
  const auto id = static_cast<std::uint16_t>(names_.size() + 1);
  names_.push_back({id, std::string(text)});
  names_bytes_ += text.size();
  name_ids_.emplace(text, id);
  return id;
}

bool Interner::are_names_full() const {
  const std::lock_guard lock(mutex_);
  return are_names_full_;
}

std::uint16_t Interner::track(std::int32_t thread_id, std::string_view thread_name, std::int32_t device,
                              std::uint64_t stream) {
  const std::lock_guard lock(mutex_);
  const TrackKey key{thread_id, device, stream};
  if (const auto found = track_ids_.find(key); found != track_ids_.end()) return found->second;
  if (tracks_.size() == kMaxIds) return 0;
  const auto id = static_cast<std::uint16_t>(tracks_.size() + 1);
  tracks_.push_back({id, thread_id, std::string(thread_name), device, stream});
  track_ids_.emplace(key, id);
  return id;
}

std::uint16_t Interner::communicator(std::string_view name, std::string_view dimension,
                                     std::span<const std::int32_t> members, bool* is_new) {
  name = shortened(name);
  dimension = shortened(dimension);
  const std::lock_guard lock(mutex_);
  if (is_new != nullptr) *is_new = false;
  CommunicatorKey key{name, dimension, std::vector<std::int32_t>(members.begin(), members.end())};
  if (const auto found = communicator_ids_.find(key); found != communicator_ids_.end()) return found->second;
  if (communicators_.size() == kMaxIds) return 0;
  const auto id = static_cast<std::uint16_t>(communicators_.size() + 1);
  communicators_.push_back({id, std::string(name), std::string(dimension), std::get<2>(key)});
  communicator_ids_.emplace(std::move(key), id);
  if (is_new != nullptr) *is_new = true;
  return id;
}

std::vector<InternedName> Interner::names_since(std::size_t n) const {
  const std::lock_guard lock(mutex_);
  return since(names_, n);
}

std::vector<InternedTrack> Interner::tracks_since(std::size_t n) const {
  const std::lock_guard lock(mutex_);
  return since(tracks_, n);
}

std::vector<InternedCommunicator> Interner::communicators_since(std::size_t n) const {
  const std::lock_guard lock(mutex_);
  return since(communicators_, n);
}

}  // namespace smon_rt
