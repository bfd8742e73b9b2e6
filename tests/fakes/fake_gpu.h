#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "fakes/fake_gpu_streams.h"

namespace smon_rt {

/// The memory of a GPU without one, and its streams. Addresses are none of the host's: whoever follows one crashes.
///
///     FakeGpu gpu;
///     FakeGpuCopier copier(gpu);
///     const std::uint64_t weights = gpu.allocate(4096);
///     gpu.fill(stream, weights, 4096, std::byte{7});   // in the stream, as a kernel would
///     gpu.streams().run();                             // or step(stream), or set_automatic(true)
///
/// Threading: any thread.
class FakeGpu {
 public:
  /// Of zeros.
  std::uint64_t allocate(std::size_t bytes);
  bool free(std::uint64_t address);
  bool is_used() const;
  FakeGpuStreams& streams() { return streams_; }

  /// In the order of the stream.
  void fill(std::uint64_t stream, std::uint64_t address, std::size_t bytes, std::byte value);
  void copy_to_host(std::uint64_t stream, std::byte* host, std::uint64_t address, std::size_t bytes);
  void copy_on_device(std::uint64_t stream, std::uint64_t to, std::uint64_t from, std::size_t bytes);
  /// At once, beside all streams.
  void write(std::uint64_t address, std::span<const std::byte> content);

  /// While a stream is captured into a graph.
  void set_capturing(std::uint64_t stream, bool is_capturing);
  bool is_capturing(std::uint64_t stream) const;
  /// Whether threads have a context of it.
  void set_context(bool has_context);
  bool has_context() const;
  /// Null: not all of these bytes are the GPU's.
  std::byte* find(std::uint64_t address, std::size_t bytes) const;
  /// As if just made.
  void reset();

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::vector<std::byte>> allocations_;
  std::set<std::uint64_t> capturing_;
  bool has_context_ = true;
  std::uint64_t next_address_ = 0x00fa'0000'0000'0000;  // no address of a process
  FakeGpuStreams streams_;
};

}  // namespace smon_rt
