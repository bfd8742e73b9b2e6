#include "record/sampling.h"

#include <algorithm>
#include <cmath>

namespace smon_rt {

namespace {

constexpr std::uint64_t kPpb = 1'000'000'000;
constexpr std::int64_t kMaxStep = 0xffff'ffff;

/// FNV-1a: the same on every rank, whatever its standard library.
std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// The finaliser of splitmix64: neighbouring blocks get unrelated offsets.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::uint64_t ratio_ppb(double ratio) {
  if (!(ratio > 0)) return 0;  // NaN, too
  return static_cast<std::uint64_t>(std::llround(std::min(ratio, 1.0) * static_cast<double>(kPpb)));
}

}  // namespace

Sampling::Sampling(const SamplingOptions& options, std::string_view run_id)
    : options_(options), run_hash_(hash_text(run_id)), ratio_ppb_(ratio_ppb(options.sample_ratio)) {
  // Blocks are counted in 64 bits: window * 1e9 * block stays below 2^63 for every step of 32 bits.
  options_.window_steps = std::clamp<std::uint32_t>(options.window_steps, 1, 1024);
}

bool Sampling::is_in_window(std::uint32_t step) const noexcept {
  if (ratio_ppb_ == 0) return false;
  if (ratio_ppb_ >= kPpb) return true;
  // Block b begins at step ceil(b * window / ratio): exactly `window` steps of each block, whatever the ratio.
  const std::uint64_t window_ppb = options_.window_steps * kPpb;
  const auto begin_of = [&](std::uint64_t block) { return (block * window_ppb + ratio_ppb_ - 1) / ratio_ppb_; };
  const std::uint64_t block = step * ratio_ppb_ / window_ppb;
  const std::uint64_t begin = begin_of(block);
  const std::uint64_t spare =
      begin_of(block + 1) - begin - std::min<std::uint64_t>(options_.window_steps, begin_of(block + 1) - begin);
  const std::uint64_t offset = mix(run_hash_ ^ mix(block)) % (spare + 1);
  return step >= begin + offset && step < begin + offset + options_.window_steps;
}

Sampling::Decision Sampling::decide(std::uint32_t step) noexcept {
  if (first_step_ < 0) first_step_ = step;
  // Sequentially consistent, as in request(): of two at the same time, this one sees the window or that one the step.
  current_step_.store(step);
  const std::int64_t since_first = static_cast<std::int64_t>(step) - first_step_;
  const bool is_warmup = since_first >= 0 && since_first < options_.warmup_steps;
  const bool is_early = since_first >= 0 && since_first < std::int64_t{options_.warmup_steps} + options_.always_steps;
  return {is_early || is_in_window(step) || is_requested(step), is_warmup};
}

bool Sampling::is_requested(std::uint32_t step) const noexcept {
  return std::any_of(requests_.begin(), requests_.end(), [&](const std::atomic<std::uint64_t>& request) {
    const std::uint64_t window = request.load();
    const std::uint64_t first = window >> 32;
    return step >= first && step < first + (window & 0xffff'ffff);
  });
}

Sampling::RequestResult Sampling::request(std::int64_t first_step, std::int32_t step_count) noexcept {
  if (step_count <= 0 || first_step > kMaxStep) return RequestResult::kInvalid;
  const std::lock_guard lock(request_mutex_);
  const std::int64_t current = current_step();
  if (first_step < 0) first_step = current + 1;
  if (first_step <= current) return RequestResult::kLate;
  const std::uint64_t window = static_cast<std::uint64_t>(first_step) << 32 | static_cast<std::uint32_t>(step_count);
  for (auto& request : requests_) {
    const std::uint64_t old = request.load(std::memory_order_relaxed);
    if (old == window) return RequestResult::kAccepted;  // heard of twice: by the store and by the file
    const auto old_end = static_cast<std::int64_t>((old >> 32) + (old & 0xffff'ffff));
    if (old != 0 && old_end > current) continue;
    request.store(window);
    // The step may have begun meanwhile, without looking at the new window.
    if (current_step_.load() < first_step) return RequestResult::kAccepted;
    request.store(0);
    return RequestResult::kLate;
  }
  return RequestResult::kFull;
}

}  // namespace smon_rt
