#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <span>
#include <vector>

#include "bindings/python_reference.h"

namespace smon_rt::bindings {

/// Where the tensors of a checkpoint lie, and whether all of them are still where they were found: looked at before
/// each capture, of thousands of tensors.
///
/// Knows nothing of torch but the names data_ptr, numel and _local_tensor (of a DTensor).
///
/// Threading: one thread, with the GIL.
/// Cost: of a tensor two calls into torch and two look-ups.
class TensorAddresses {
 public:
  /// `entries`: (dict, key, tensor, its local tensor or None, its range or -1); `sizes`: (container, its length);
  /// `addresses`: of each range. Throws what Python raised.
  TensorAddresses(const pybind11::list& entries, const pybind11::list& sizes, std::vector<std::uint64_t> addresses);

  /// False: a tensor is another one, moved, or has more or fewer elements, or a container has more or fewer.
  bool is_unchanged() const;

  void set(std::size_t range, std::uint64_t address) { addresses_.at(range) = address; }
  std::span<const std::uint64_t> addresses() const { return addresses_; }

 private:
  struct Entry {
    Reference container, key, tensor, local;
    std::uint64_t address = 0;
    std::int64_t element_count = 0;
  };
  struct Size {
    Reference container;
    Py_ssize_t length = 0;
  };

  bool is_where_it_was(const Entry& entry) const;

  std::vector<Entry> entries_;
  std::vector<Size> sizes_;
  std::vector<std::uint64_t> addresses_;
};

void add_tensor_addresses(pybind11::module_& module);

}  // namespace smon_rt::bindings
