#pragma once

#include <span>

#include "contract/findings.h"
#include "record/gpu_timer.h"

namespace smon_rt::contract {

/// An implementation of GpuTimer, fresh for each check, and the GPU that it times.
class GpuTimerFixture {
 public:
  virtual ~GpuTimerFixture() = default;

  virtual GpuTimer& timer() = 0;
  /// A stream that events are recorded in.
  virtual GpuStream stream() = 0;
  /// Makes a context current to this thread and returns it.
  virtual GpuContext enter_context() = 0;
  /// None is current afterwards.
  virtual void leave_context() = 0;
  virtual void begin_capture(GpuStream stream) = 0;
  virtual void end_capture(GpuStream stream) = 0;
  /// Later events have a later device time.
  virtual void pass_time() = 0;
  /// All that was recorded is ready.
  virtual void finish_all() = 0;
};

/// One thing that every GpuTimer does.
struct GpuTimerCheck {
  const char* name;
  bool needs_events;  // not for an implementation that never gives one
  void (*run)(GpuTimerFixture& fixture, Findings& findings);
};

/// All of them. Called by tests of each implementation (gpu_timer_gtest.h) and by the program that users have
/// (contract_program.cc): hence without a test framework.
std::span<const GpuTimerCheck> gpu_timer_contract();

}  // namespace smon_rt::contract
