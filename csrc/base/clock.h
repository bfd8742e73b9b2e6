#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace smon_rt {

/// What raw ticks are. The numbers are those of ClockSource in trace.proto.
enum class ClockSource : std::uint32_t { kUnknown = 0, kTsc = 1, kCntvct = 2, kClockGettime = 3 };

/// The host's clocks, read as close together as they could be.
struct ClockReading {
  std::int64_t ticks = 0;
  std::int64_t monotonic_ns = 0;
  std::int64_t realtime_ns = 0;
  std::uint64_t width_ns = 0;  // the three were read within this time
};

/// Raw ticks for the hot path, readings of all clocks for the thread that converts them (base/clock_converter.h).
///
/// Threading: any thread. Cost: ticks() is one instruction on x86-64 (only if the kernel itself trusts the counter: its
/// clock source is tsc) and aarch64, else clock_gettime through the vDSO.
class Clock {
 public:
  /// The clock of this machine. Leaked, so that it outlives every thread.
  static const Clock& host();

  /// A clock that tells what it is told, for tests. Both functions must be callable from any thread.
  struct Source {
    std::int64_t (*read_ticks)(void* context) = nullptr;
    ClockReading (*read)(void* context) = nullptr;
    void* context = nullptr;
  };
  explicit Clock(const Source& source) : source_(ClockSource::kUnknown), fake_(source) {}

  std::int64_t ticks() const noexcept {
    if (has_counter()) [[likely]]
      return counter_ticks();
    return slow_ticks();
  }

  /// Whether ticks are the processor's counter, which counter_ticks() reads without asking.
  bool has_counter() const noexcept { return source_ == ClockSource::kTsc || source_ == ClockSource::kCntvct; }

  static std::int64_t counter_ticks() noexcept {
#if defined(__x86_64__)
    // Not ordered with what surrounds it (no fence): some ns of freedom are cheaper than the wait.
    return static_cast<std::int64_t>(__rdtsc());
#elif defined(__aarch64__)
    std::int64_t ticks;
    asm volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#else
    return 0;
#endif
  }

  /// The tightest of several attempts.
  ClockReading read() const noexcept;

  ClockSource source() const noexcept { return source_; }

  /// Kernel's name of its current clock source; what decides for the TSC. Empty if it does not say.
  static const char* kernel_clock_source() noexcept;

 private:
  explicit Clock(ClockSource source) : source_(source) {}
  std::int64_t slow_ticks() const noexcept;

  ClockSource source_;
  Source fake_;
};

/// Nanoseconds of CLOCK_MONOTONIC, which spans in files and heartbeats are in.
std::int64_t monotonic_ns() noexcept;

}  // namespace smon_rt
