#include "base/clock.h"

#include <time.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace smon_rt {

namespace {

constexpr std::int64_t kNsPerS = 1'000'000'000;

std::int64_t read_ns(clockid_t id) noexcept {
  timespec time{};
  ::clock_gettime(id, &time);
  return time.tv_sec * kNsPerS + time.tv_nsec;
}

[[maybe_unused]] bool kernel_trusts_tsc() noexcept {
  return std::strcmp(Clock::kernel_clock_source(), "tsc") == 0;
}

ClockSource best_source() noexcept {
#if defined(__x86_64__)
  // A counter that the kernel has given up on (unstable, unsynchronised cores, some virtual machines) is not for us.
  return kernel_trusts_tsc() ? ClockSource::kTsc : ClockSource::kClockGettime;
#elif defined(__aarch64__)
  return ClockSource::kCntvct;
#else
  return ClockSource::kClockGettime;
#endif
}

}  // namespace

const Clock& Clock::host() {
  static const Clock& clock = *new Clock(best_source());
  return clock;
}

std::int64_t Clock::slow_ticks() const noexcept {
  return fake_.read_ticks != nullptr ? fake_.read_ticks(fake_.context) : read_ns(CLOCK_MONOTONIC);
}

ClockReading Clock::read() const noexcept {
  if (fake_.read != nullptr) return fake_.read(fake_.context);
  // A preemption between two reads only widens an attempt; of a few, one is whole.
  constexpr int kAttempts = 8;
  ClockReading best;
  best.width_ns = ~std::uint64_t{0};
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    // Ticks are framed by two readings of the clock they are converted to, whose middle they belong to.
    const std::int64_t before = read_ns(CLOCK_MONOTONIC);
    const std::int64_t now_ticks = ticks();
    const std::int64_t after = read_ns(CLOCK_MONOTONIC);
    const std::int64_t realtime = read_ns(CLOCK_REALTIME);
    const std::int64_t last = read_ns(CLOCK_MONOTONIC);
    const auto width = static_cast<std::uint64_t>(last - before);
    if (width >= best.width_ns) continue;
    const std::int64_t middle = before + (after - before) / 2;
    // Both clocks name the moment of the ticks.
    best = {now_ticks, middle, realtime - (after + (last - after) / 2 - middle), width};
  }
  return best;
}

const char* Clock::kernel_clock_source() noexcept {
  static const std::array<char, 32> name = [] {
    std::array<char, 32> text{};
    std::FILE* file = std::fopen("/sys/devices/system/clocksource/clocksource0/current_clocksource", "re");
    if (file == nullptr) return text;
    if (std::fgets(text.data(), static_cast<int>(text.size()), file) != nullptr) {
      text[std::strcspn(text.data(), "\n")] = '\0';
    }
    std::fclose(file);
    return text;
  }();
  return name.data();
}

std::int64_t monotonic_ns() noexcept {
  return read_ns(CLOCK_MONOTONIC);
}

}  // namespace smon_rt
