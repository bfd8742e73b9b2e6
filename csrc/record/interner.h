#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

namespace smon_rt {

struct InternedName {
  std::uint16_t id = 0;
  std::string text;
};

struct InternedTrack {
  std::uint16_t id = 0;
  std::int32_t thread_id = 0;
  std::string thread_name;
  std::int32_t device = -1;  // -1: host only
  std::uint64_t stream = 0;
};

struct InternedCommunicator {
  std::uint16_t id = 0;
  std::string name;
  std::string dimension;
  std::vector<std::int32_t> member_ranks;  // global ranks in the communicator's order
};

/// Texts, tracks and communicators become numbers from 1 on, so that a span carries two bytes instead of a text. The
/// same content gives the same number.
///
/// Threading: any thread. Cost: takes a lock and allocates: once a name, never a span.
/// When full: 0 ("none") beyond 65,535 of a kind, or names of 4 MiB in all. Names are cut: each new file of a trace,
/// and each live snapshot, begins with all of them.
class Interner {
 public:
  static constexpr std::size_t kMaxNameBytes = 1024;
  static constexpr std::size_t kMaxNamesBytes = std::size_t{4} << 20;

  std::uint16_t name(std::string_view text);
  std::uint16_t track(std::int32_t thread_id, std::string_view thread_name, std::int32_t device, std::uint64_t stream);
  /// `is_new` tells the caller to set up what belongs to a communicator, once.
  std::uint16_t communicator(std::string_view name, std::string_view dimension, std::span<const std::int32_t> members,
                             bool* is_new = nullptr);

  /// Whether there was a name without room: no other one has any then, so that it is said once and for all.
  bool are_names_full() const;

  /// What has been added since the first n: ids n + 1, n + 2, … An empty answer means nothing new.
  std::vector<InternedName> names_since(std::size_t n) const;
  std::vector<InternedTrack> tracks_since(std::size_t n) const;
  std::vector<InternedCommunicator> communicators_since(std::size_t n) const;

 private:
  using TrackKey = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;
  using CommunicatorKey = std::tuple<std::string, std::string, std::vector<std::int32_t>>;

  mutable std::mutex mutex_;
  std::map<std::string, std::uint16_t, std::less<>> name_ids_;
  std::map<TrackKey, std::uint16_t> track_ids_;
  std::map<CommunicatorKey, std::uint16_t> communicator_ids_;
  std::vector<InternedName> names_;
  std::size_t names_bytes_ = 0;
  bool are_names_full_ = false;
  std::vector<InternedTrack> tracks_;
  std::vector<InternedCommunicator> communicators_;
};

}  // namespace smon_rt
