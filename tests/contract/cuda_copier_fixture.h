#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <thread>
#include <vector>

#include "contract/gpu_copier_contract.h"
#include "contract/own_gpu.h"
#include "cuda/cuda_copier.h"
#include "cuda/driver_symbols.h"

namespace smon_rt::contract {

/// CudaCopier on whatever driver the loader finds: a GPU's.
class CudaCopierFixture : public GpuCopierFixture {
 public:
  CudaCopierFixture() : gpu_(*OwnGpu::open()), copier_(*cuda::load_driver(), options()) {
    gpu_.enter_context();
    for (cuda::Handle& stream : streams_) stream = gpu_.make_stream();
    gpu_.leave_context();
  }
  ~CudaCopierFixture() override {
    for (const cuda::Handle stream : streams_) gpu_.let_go(stream);
    // A check that went wrong leaves its memory to the end of the process.
    try {
      gpu_.enter_context();
      gpu_.synchronize();
      for (const cuda::DevicePointer address : allocated_) gpu_.free(address);
    } catch (const std::exception&) {
    }
  }
  CudaCopierFixture(const CudaCopierFixture&) = delete;
  CudaCopierFixture& operator=(const CudaCopierFixture&) = delete;

  GpuCopier& copier() override { return copier_; }
  std::size_t chunk_bytes() override { return options().chunk_bytes; }
  void enter_context() override { gpu_.enter_context(); }
  void leave_context() override { gpu_.leave_context(); }
  std::uint64_t stream(int number) override {
    return reinterpret_cast<std::uintptr_t>(streams_.at(static_cast<std::size_t>(number)));
  }
  std::uint64_t allocate(std::size_t bytes) override { return allocated_.emplace_back(gpu_.allocate(bytes)); }
  void write(std::uint64_t address, std::span<const std::byte> content) override { gpu_.write(address, content); }
  void fill(std::uint64_t stream, std::uint64_t address, std::size_t bytes, std::byte value) override {
    gpu_.fill(handle(stream), address, bytes, value);
  }
  void hold(std::uint64_t stream) override { gpu_.hold(handle(stream)); }
  void let_go(std::uint64_t stream) override { gpu_.let_go(handle(stream)); }
  void begin_capture(std::uint64_t stream) override { gpu_.begin_capture(handle(stream)); }
  void end_capture(std::uint64_t stream) override { gpu_.end_capture(handle(stream)); }
  /// A GPU runs by itself.
  void run() override { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }
  void synchronize() override { gpu_.synchronize(); }

 private:
  static cuda::CudaCopierOptions options() {
    cuda::CudaCopierOptions options;
    options.chunk_bytes = std::size_t{1} << 18;
    options.registered_piece_bytes = (std::size_t{1} << 18) + 4096;  // copies must not cross its ends
    return options;
  }
  static cuda::Handle handle(std::uint64_t number) {
    return reinterpret_cast<cuda::Handle>(static_cast<std::uintptr_t>(number));
  }

  OwnGpu gpu_;
  cuda::CudaCopier copier_;
  std::array<cuda::Handle, 2> streams_{};
  std::vector<cuda::DevicePointer> allocated_;
};

}  // namespace smon_rt::contract
