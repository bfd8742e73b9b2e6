#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace smon_rt {

enum class RecordingState : std::uint32_t {
  kOff = 0,  // not started, stopped, disabled, or a forked child
  kRecording = 1,
  kPaused = 2,  // nothing begins; what is open can end
};

namespace detail {
extern std::atomic<RecordingState> g_recording_state;
}  // namespace detail

/// Whether spans are taken at all: the first test of every entry of the recorder. Private memory, so that a forked
/// child, which shares the tmpfs arena with its parent until told otherwise, has its own; kOff there before fork()
/// returns. Constant-initialised: usable at any time of a process's life.
///
/// Threading: any thread. Cost: one load of a line that is only written by start, stop, pause and fork.
inline RecordingState recording_state() noexcept {
  // acquire: pairs with the release in set_recording_state(): what was set up before is seen by who records.
  return detail::g_recording_state.load(std::memory_order_acquire);
}
inline bool is_recording() noexcept {
  return recording_state() == RecordingState::kRecording;
}

void set_recording_state(RecordingState state) noexcept;

/// Calls `handler` in every forked child, before fork() returns there and after recording was switched off. The handler
/// may only do what a signal handler may. At most 8 handlers, false beyond; never removed.
bool at_fork_in_child(void (*handler)()) noexcept;

/// How many forks lie between this process and the one that first asked: a value remembered before a fork differs
/// after.
std::uint32_t fork_count() noexcept;

/// When a process of this machine started, in clock ticks since boot (field 22 of /proc/<pid>/stat): with the pid it
/// names a process for good. Nothing if there is no such process.
std::optional<std::uint64_t> process_start_ticks(std::int32_t pid);

/// Whether the process with this pid is still the one that started then. A zombie is dead.
bool is_process_alive(std::int32_t pid, std::uint64_t start_ticks);

/// Kernel's id of the calling thread, and its name (15 characters at most; empty if unknown).
std::int32_t current_thread_id() noexcept;
void current_thread_name(char* name, std::size_t size) noexcept;

std::string host_name();
/// Changes with each boot of the machine; empty if unknown.
std::string boot_id();
/// Inode of /proc/self/ns/time: CLOCK_MONOTONIC is comparable within one. 0 if unknown.
std::uint64_t time_namespace();

}  // namespace smon_rt
