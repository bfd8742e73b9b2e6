#pragma once

#include <sys/types.h>

namespace smon_rt {

/// open() of a file that is written, with O_CLOEXEC. A job that closed 0 to 2 may print all the same, and the lowest
/// free number is what open() gives: here these three are taken until the file has another one, by what nothing can be
/// written to or read from, so that a print fails as before (EBADF). Gives back a number as
/// move_from_standard_streams() does, or, with errno set, -1.
///
/// Threading: any; callers take turns, of 10 ms at most: who waits longer, for one whose file system hangs or that a
/// fork cut off, opens nevertheless.
int open_for_writing(const char* path, int flags, mode_t mode = 0) noexcept;

}  // namespace smon_rt
