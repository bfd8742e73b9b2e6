#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

namespace smon_rt::analysis {

/// The values of a trace's ops, one double per op and lane, uninitialised until written. Large ones ask for huge
/// pages: first touch and address translation of 4 KiB pages are a tenth of the engine's time on millions of ops.
class LaneBuffer {
 public:
  LaneBuffer() = default;
  /// Throws std::bad_alloc.
  explicit LaneBuffer(std::size_t count);

  double* data() { return values_.get(); }
  const double* data() const { return values_.get(); }
  std::size_t size() const { return count_; }
  std::span<double> values() { return {values_.get(), count_}; }

 private:
  struct Free {
    void operator()(double* values) const { std::free(values); }
  };

  std::unique_ptr<double[], Free> values_;
  std::size_t count_ = 0;
};

}  // namespace smon_rt::analysis
