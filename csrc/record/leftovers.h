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
  std::uint32_t kept_arenas = 0;     // of dead processes, but their directory or disk does not answer now
  std::string problem;               // one line about the first of these, "" if none is worth a warning

  friend bool operator==(const LeftoverCounts&, const LeftoverCounts&) = default;
};

/// Finds arenas of dead processes of this user in a tmpfs, appends the spans that their trace files lack, and removes
/// them. What is in a file already is told by ring id and index, so that nothing is taken twice, however often this is
/// interrupted. Arenas of live processes, other users, and `own_path` are left alone. A trace file that cannot be
/// appended to is tried again at each start for ten minutes from the first try on, then its arena is removed; at once
/// if the file's directory is gone. What is lost by that is logged, as an information.
///
/// Threading: any number of processes and threads at once: a lock on the arena picks one. Signals must be blocked (see
/// TraceFile). Cost: one pass over each trace file's packet heads.
/// Odd case: an arena or trace file may hold anything at all; what contradicts itself is left out and said.
LeftoverCounts merge_leftovers(const std::string& tmpfs_directory, const std::string& own_path);

/// A live process that records into an arena.
struct ArenaOwner {
  std::int32_t pid = 0;
  std::string trace_file;  // "" for none
};

/// Nothing if there is no such arena, or its process is dead. Never call it with this process's own arena: closing
/// the file would give up the lock on it.
std::optional<ArenaOwner> find_arena_owner(const std::string& arena_path);

/// Whether a file lies in this directory, however the two are spelled.
bool is_in_directory(const std::string& file, const std::string& directory);

}  // namespace smon_rt
