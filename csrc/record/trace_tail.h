#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "base/result.h"
#include "format/trace_records.h"

namespace smon_rt {

/// What the end of a trace file says about what is in it already.
struct TraceTail {
  TraceIdentity identity;                             // of its first packet
  std::uint64_t whole_bytes = 0;                      // up to the end of its last whole packet
  std::uint64_t file_bytes = 0;                       // larger, if the last packet was cut
  std::map<std::uint32_t, std::uint64_t> next_index;  // of each ring: the first index that is not in the file
  std::set<std::uint32_t> communicators;              // ids that have a name in what was read
  std::multimap<std::uint32_t, std::int64_t> steps;   // those that have times, and their starts in ns
  bool has_open_spans = false;                        // those of the end of recording
  bool is_closed = false;                             // by its process, at the end of recording
  std::uint64_t read_bytes = 0;                       // what all of this cost
};

/// Reads the first packet and what follows `settled_bytes`, where a packet begins: what may be both in the file and in
/// its arena was written after that, in one piece of some 100 KB (ArenaHeader::settled_bytes).
///
/// Where neither a whole packet nor the end is there (0: the arena does not say), looks at the heads of all packets and
/// reads the last 8 MiB of them.
Result<TraceTail> read_trace_tail(int fd, const std::string& path, std::uint64_t settled_bytes = 0);

}  // namespace smon_rt
