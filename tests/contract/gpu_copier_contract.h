#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "checkpoint/gpu_copier.h"
#include "contract/findings.h"

namespace smon_rt::contract {

/// An implementation of GpuCopier, fresh for each check, and the GPU that it copies from.
class GpuCopierFixture {
 public:
  virtual ~GpuCopierFixture() = default;

  virtual GpuCopier& copier() = 0;
  /// Of one of its copies at most.
  virtual std::size_t chunk_bytes() = 0;
  /// Makes a context current to this thread, and none.
  virtual void enter_context() = 0;
  virtual void leave_context() = 0;
  /// Two streams of the job, 0 and 1, that do not wait for each other.
  virtual std::uint64_t stream(int number) = 0;

  virtual std::uint64_t allocate(std::size_t bytes) = 0;
  /// At once; nothing else is under way.
  virtual void write(std::uint64_t address, std::span<const std::byte> content) = 0;
  /// In the stream, as a kernel would.
  virtual void fill(std::uint64_t stream, std::uint64_t address, std::size_t bytes, std::byte value) = 0;
  /// The stream stands still there until it is let go: one stream at a time, once.
  virtual void hold(std::uint64_t stream) = 0;
  virtual void let_go(std::uint64_t stream) = 0;
  virtual void begin_capture(std::uint64_t stream) = 0;
  virtual void end_capture(std::uint64_t stream) = 0;

  /// What can be done is done; time passes.
  virtual void run() = 0;
  /// All is done. No stream is held.
  virtual void synchronize() = 0;
};

/// One thing that every GpuCopier does.
struct GpuCopierCheck {
  const char* name;
  bool needs_gpu;  // not for an implementation that never copies
  void (*run)(GpuCopierFixture& fixture, Findings& findings);
};

/// All of them. Called by tests of each implementation (gpu_copier_gtest.h) and by the program that users have
/// (contract_program.cc): hence without a test framework.
std::span<const GpuCopierCheck> gpu_copier_contract();

}  // namespace smon_rt::contract
