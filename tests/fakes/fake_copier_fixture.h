#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "contract/gpu_copier_contract.h"
#include "cuda/cuda_copier.h"
#include "fakes/fake_libcuda.h"

extern "C" {
smon_rt::cuda::Status cuMemsetD8Async(smon_rt::cuda::DevicePointer address, unsigned char value, std::size_t bytes,
                                      smon_rt::cuda::Handle stream);
smon_rt::cuda::Status cuMemcpyHtoD_v2(smon_rt::cuda::DevicePointer address, const void* host, std::size_t bytes);
}

namespace smon_rt::contract {

/// CudaCopier over fake_libcuda.so.
class FakeCudaCopierFixture : public GpuCopierFixture {
 public:
  FakeCudaCopierFixture() {
    fake_cuda_reset();
    const auto driver = cuda::load_driver(FAKE_LIBCUDA);
    EXPECT_TRUE(driver);
    driver_ = *driver;
    // Slots are page-locked in two pieces and a bit, which copies must not cross.
    cuda::CudaCopierOptions options;
    options.chunk_bytes = chunk_bytes();
    options.registered_piece_bytes = 100;
    copier_ = std::make_unique<cuda::CudaCopier>(driver_, options);
    context_ = fake_cuda_make_context(3);
    fake_cuda_set_current(context_);
    for (cuda::Handle& stream : streams_) EXPECT_EQ(driver_.cuStreamCreate(&stream, 1), cuda::Status::kSuccess);
    fake_cuda_set_current(nullptr);
  }
  GpuCopier& copier() override { return *copier_; }
  std::size_t chunk_bytes() override { return 64; }
  void enter_context() override { fake_cuda_set_current(context_); }
  void leave_context() override { fake_cuda_set_current(nullptr); }
  std::uint64_t stream(int number) override {
    return reinterpret_cast<std::uintptr_t>(streams_.at(static_cast<std::size_t>(number)));
  }
  std::uint64_t allocate(std::size_t bytes) override {
    cuda::DevicePointer address = 0;
    EXPECT_EQ(driver_.cuMemAlloc(&address, bytes), cuda::Status::kSuccess);
    return address;
  }
  void write(std::uint64_t address, std::span<const std::byte> content) override {
    EXPECT_EQ(cuMemcpyHtoD_v2(address, content.data(), content.size()), cuda::Status::kSuccess);
  }
  void fill(std::uint64_t stream, std::uint64_t address, std::size_t bytes, std::byte value) override {
    EXPECT_EQ(cuMemsetD8Async(address, static_cast<unsigned char>(value), bytes, handle(stream)),
              cuda::Status::kSuccess);
  }
  void hold(std::uint64_t stream) override { fake_cuda_hold(handle(stream)); }
  void let_go(std::uint64_t stream) override { fake_cuda_let_go(handle(stream)); }
  void begin_capture(std::uint64_t stream) override { fake_cuda_capture(handle(stream), 1); }
  void end_capture(std::uint64_t stream) override {
    fake_cuda_capture(handle(stream), 0);
    EXPECT_EQ(fake_cuda_is_capture_broken(), 0);
  }
  void run() override {
    fake_cuda_run();
    fake_cuda_pass_stream_time(1000);
  }
  void synchronize() override { fake_cuda_run(); }

  void* context() const { return context_; }
  void drop_copier() { copier_.reset(); }
  static cuda::Handle handle(std::uint64_t number) {
    return reinterpret_cast<cuda::Handle>(static_cast<std::uintptr_t>(number));
  }

 private:
  cuda::DriverSymbols driver_;
  std::unique_ptr<cuda::CudaCopier> copier_;
  void* context_ = nullptr;
  std::array<cuda::Handle, 2> streams_{};
};

}  // namespace smon_rt::contract
