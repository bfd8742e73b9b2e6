#include "cuda/driver_call.h"

#include <time.h>

#include <atomic>
#include <cstdlib>

#include "base/process_state.h"

namespace smon_rt::cuda {
namespace {

constinit std::atomic<bool> g_is_exiting{false};
constinit std::atomic<int> g_calls_inside{0};  // of our own threads
constinit std::atomic<bool> g_is_watching{false};
constinit std::atomic<std::uint32_t> g_watching_fork_count{0};

/// Before the driver's own exit handler.
void on_exit() {
  if (g_watching_fork_count.load() != fork_count()) return;  // of a parent process
  g_is_exiting.store(true, std::memory_order_seq_cst);
  const timespec nap{0, 50'000};
  for (int i = 0; i < 2000 && g_calls_inside.load(std::memory_order_seq_cst) != 0; ++i) ::nanosleep(&nap, nullptr);
}

}  // namespace

bool is_exiting() {
  return g_is_exiting.load(std::memory_order_seq_cst);
}

void watch_exit() {
  const bool is_of_parent = g_watching_fork_count.exchange(fork_count()) != fork_count();
  if (!g_is_watching.exchange(true) || is_of_parent) std::atexit(&on_exit);
}

DriverCall::DriverCall(const DriverSymbols& driver, Handle context) : driver_(driver) {
  // seq_cst, as in on_exit(): either it sees this call, or this sees the exit.
  g_calls_inside.fetch_add(1, std::memory_order_seq_cst);
  if (is_exiting() || driver_.cuCtxPushCurrent(context) != Status::kSuccess) return;
  is_in_context_ = true;
  is_relaxed_ = driver_.cuThreadExchangeStreamCaptureMode(&mode_) == Status::kSuccess;
}

DriverCall::~DriverCall() {
  if (is_relaxed_) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  Handle context = nullptr;
  if (is_in_context_) driver_.cuCtxPopCurrent(&context);
  g_calls_inside.fetch_sub(1, std::memory_order_seq_cst);
}

std::string status_text(Status status) {
  return "the driver says " + std::to_string(static_cast<int>(status));
}

}  // namespace smon_rt::cuda
