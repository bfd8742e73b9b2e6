#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace smon_rt {

/// What merge_leftovers() did. Nothing that was recorded disappears without being counted here.
struct LeftoverCounts {
  std::uint32_t merged_arenas = 0;  // their spans are in their trace file, the arena is gone
  std::uint64_t merged_spans = 0;   // ended spans that the file lacked
  std::uint64_t merged_open_spans = 0;
  std::uint64_t merged_steps = 0;    // of these only the times were missing
  std::uint32_t dropped_arenas = 0;  // gone without a trace file to put their spans into
  std::uint32_t kept_arenas = 0;     // of dead processes, but their directory or disk does not answer, or is not there
  std::string problem;               // one line about the first of these, "" if none is worth a warning

  friend bool operator==(const LeftoverCounts&, const LeftoverCounts&) = default;
};

/// How long an arena is kept whose spans cannot be put into its file, from the first try on.
struct LeftoverLimits {
  std::int64_t retry_s = 600;  // the file cannot be opened, or its disk is full
  // Its directory is not there. It may be one of another container, or of a mount that is not made yet: only a start
  // that sees it can merge.
  std::int64_t absent_s = 24 * 3600;
  // Less free room than this in the tmpfs, and such arenas go at once: Docker's /dev/shm takes some 16 of them.
  double least_free_ratio = 0.25;
  std::int64_t unreadable_s = 60;  // what cannot be read may be an arena that is just being made
};

/// Finds arenas of dead processes of this user in a tmpfs, appends the spans that their trace files lack, and removes
/// them. What is in a file already is told by ring id and index, so that nothing is taken twice, however often this is
/// interrupted. Arenas of live processes, other users, and `own_path` are left alone. A trace file that cannot be
/// appended to is tried again at each start until the limits say that it was long enough, then its arena is removed.
/// What is lost by that is logged, as an information.
///
/// Threading: any number of processes and threads at once: a lock on the arena picks one. Signals must be blocked (see
/// TraceFile). Cost: reads each arena, and of its trace file what was written last.
/// Odd case: an arena or trace file may hold anything at all; what contradicts itself is left out and said.
LeftoverCounts merge_leftovers(const std::string& tmpfs_directory, const std::string& own_path,
                               const LeftoverLimits& limits = {});

/// A live process that records into an arena.
struct ArenaOwner {
  std::int32_t pid = 0;
  std::string trace_file;  // "" for none
};

/// Nothing if there is no such arena, or its process is dead.
std::optional<ArenaOwner> find_arena_owner(const std::string& arena_path);

/// Whether a file lies in this directory, however the two are spelled.
bool is_in_directory(const std::string& file, const std::string& directory);

}  // namespace smon_rt
