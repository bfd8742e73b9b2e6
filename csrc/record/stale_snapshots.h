#pragma once

#include <cstdint>
#include <string>

namespace smon_rt {

/// Where snapshots lie, whose they are, and what time it is there: directories of other nodes have clocks of their own.
struct StaleSnapshotOptions {
  std::string trace_directory;
  std::int32_t rank = 0;
  std::string arena_directory = "/dev/shm";
  std::int64_t now_s = 0;      // as the trace directory dates its files
  std::int64_t oldest_s = 60;  // of another host: a dozen turns of a live process's reporter
};

/// Removes the snapshots (rank-00003.<run>-<attempt>.live) that processes of this rank left that ended by _exit, abort
/// or a signal, so that nobody takes them for live ones. Of this host and boot the process itself is looked for, by pid
/// and start time, and by the lock on its arena if it is of another pid namespace; of others only their age tells. What
/// is no snapshot is left alone, and so are those of other ranks. How many were removed.
///
/// Threading: any; the one live process of a rank. Cost: reads one directory, and the snapshots of one rank in it.
std::uint32_t remove_stale_snapshots(const StaleSnapshotOptions& options);

}  // namespace smon_rt
