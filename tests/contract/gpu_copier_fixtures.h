#pragma once

#include <cstddef>
#include <cstdint>

#include "contract/gpu_copier_contract.h"
#include "fakes/fake_gpu_copier.h"

namespace smon_rt::contract {

/// What a fixture of a FakeGpu does, whoever copies from it.
class FakeGpuCopierFixture : public GpuCopierFixture {
 public:
  GpuCopier& copier() override { return copier_; }
  std::size_t chunk_bytes() override { return FakeGpuCopier::kFakeChunkBytes; }
  void enter_context() override { gpu_.set_context(true); }
  void leave_context() override { gpu_.set_context(false); }
  std::uint64_t stream(int number) override { return 0x10 + static_cast<std::uint64_t>(number); }
  std::uint64_t allocate(std::size_t bytes) override { return gpu_.allocate(bytes); }
  void write(std::uint64_t address, std::span<const std::byte> content) override { gpu_.write(address, content); }
  void fill(std::uint64_t stream, std::uint64_t address, std::size_t bytes, std::byte value) override {
    gpu_.fill(stream, address, bytes, value);
  }
  void hold(std::uint64_t stream) override { gpu_.streams().hold(stream); }
  void let_go(std::uint64_t stream) override { gpu_.streams().let_go(stream); }
  void begin_capture(std::uint64_t stream) override { gpu_.set_capturing(stream, true); }
  void end_capture(std::uint64_t stream) override { gpu_.set_capturing(stream, false); }
  void run() override {
    gpu_.streams().run();
    gpu_.streams().pass_time(1000);
  }
  void synchronize() override { gpu_.streams().run(); }

 private:
  FakeGpu gpu_;

 protected:
  FakeGpuCopier copier_{gpu_};
};

class NullGpuCopierFixture final : public FakeGpuCopierFixture {
 public:
  GpuCopier& copier() override { return null_; }

 private:
  NullGpuCopier null_;
};

}  // namespace smon_rt::contract
