#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

// Who owns an arena's file: a process of this pid namespace by its pid and start time, one of another namespace that
// shares the tmpfs by a lock on the file.
//
// The lock belongs to the open file description (F_OFD_SETLK), not to the process: a POSIX record lock would be gone as
// soon as the process closed any other descriptor of the file, as when it reads its own live trace. The mapping keeps
// the description open, too, so that not even closing our descriptor gives it up. What comes with it: a forked child
// shares the description, and would hold the lock on when its parent is dead. So the child lets go of both, the
// descriptor and the mapping (Arena::detach_in_child()); exec() and posix_spawn() close them by themselves.

namespace smon_rt {

/// Takes the lock for as long as this open file description is open somewhere. False: another one has it.
bool lock_arena(int fd) noexcept;
/// Gives it up at once, whoever else has the description open: a forked child, perhaps.
void unlock_arena(int fd) noexcept;

/// Whether another open file description has the lock, in whatever pid namespace. Waits up to half a second for a
/// process that only merges the arena.
bool is_arena_locked(int fd);

/// Files of arenas that this image of the process has mapped: exec() changes neither pid nor start time.
void add_own_arena(const struct stat& status);
void remove_own_arena(std::pair<dev_t, ino_t> file);

/// Whether an arena's owner is alive, as far as this pid namespace tells: this pid, which started then; and for this
/// process's own pid, whether this image of it made the file with this status.
bool is_arena_owner_alive(std::int32_t pid, std::uint64_t start_ticks, const struct stat& status);

/// What an arena's header says of its owner.
struct ArenaProcess {
  std::int32_t pid = 0;
  std::uint64_t start_ticks = 0;
  std::string boot_id;
};

/// Nothing if the file is no arena. Reads the few bytes, not the file.
std::optional<ArenaProcess> read_arena_process(int fd);

/// What stands where a new arena would be.
struct ArenaName {
  bool is_usable = false;
  std::string owner;  // the live process that records there, in words; "" if none does
  std::string why;    // why it cannot be used, "" if it can or has an owner
};

/// Looks at a name, and makes it free if a dead process's file has it, by renaming that to `<name>.dead-<pid>-<n>`.
ArenaName free_arena_name(const std::string& path);

}  // namespace smon_rt
