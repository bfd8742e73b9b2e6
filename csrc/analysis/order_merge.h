#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace smon_rt::analysis {

/// One order of all items that agrees with each of several sequences, any of which may lack items that others have.
class OrderMerge {
 public:
  explicit OrderMerge(std::size_t item_count) : next_(item_count), position_(item_count, kUnknown) {}

  /// Takes in a sequence, or leaves all as it was and returns two of its items, neighbours, of which the sequences so
  /// far have the second before the first.
  std::optional<std::pair<std::uint32_t, std::uint32_t>> add(std::span<const std::uint32_t> sequence);

  /// The items of all sequences taken in.
  const std::vector<std::uint32_t>& order() const { return order_; }
  /// Items that come right after `item` in some sequence.
  const std::vector<std::uint32_t>& next(std::uint32_t item) const { return next_[item]; }

 private:
  static constexpr std::uint32_t kUnknown = static_cast<std::uint32_t>(-1);

  bool agrees(std::span<const std::uint32_t> sequence) const;
  void add_edges(std::span<const std::uint32_t> sequence, std::vector<std::uint32_t>& added_to);
  bool sort();
  bool reaches(std::uint32_t from, std::uint32_t to) const;

  std::vector<std::vector<std::uint32_t>> next_;
  std::vector<std::uint32_t> position_;  // in order_
  std::vector<std::uint32_t> order_;
};

}  // namespace smon_rt::analysis
