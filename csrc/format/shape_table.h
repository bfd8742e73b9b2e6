#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace smon_rt {

/// The different shapes of a batch (trace.proto: what rows have in common), numbered in the order in which they come.
///
/// Cost: no allocation; some 100 bytes a shape where it lies.
template <typename Shape, std::size_t kMaxShapes>
class ShapeTable {
 public:
  static constexpr std::uint16_t kFull = 0xFFFF;

  ShapeTable() { clear(); }

  void clear() {
    numbers_.fill(kFree);
    count_ = 0;
  }

  /// kFull if it is new and there is no room.
  std::uint16_t number_of(const Shape& shape) {
    for (std::size_t i = hash_of(shape);; ++i) {
      std::uint16_t& number = numbers_[i % kSlots];
      if (number == kFree) {
        if (count_ == kMaxShapes) return kFull;
        number = static_cast<std::uint16_t>(count_);
        shapes_[count_++] = shape;
      }
      if (shapes_[number] == shape) return number;
    }
  }

  std::size_t size() const { return count_; }
  const Shape& operator[](std::size_t number) const { return shapes_[number]; }

 private:
  static constexpr std::uint16_t kFree = 0xFFFF;
  static constexpr std::size_t kSlots = 2 * kMaxShapes;  // at most half full
  static_assert(std::has_single_bit(kSlots));
  static_assert(std::has_unique_object_representations_v<Shape> && sizeof(Shape) % sizeof(std::uint64_t) == 0,
                "hash_of() reads every byte");

  static std::size_t hash_of(const Shape& shape) {
    std::array<std::uint64_t, sizeof(Shape) / sizeof(std::uint64_t)> words;
    std::memcpy(words.data(), &shape, sizeof(words));
    std::uint64_t mixed = 0;
    for (const std::uint64_t word : words) mixed = (mixed ^ word ^ mixed >> 29) * 0x9E3779B97F4A7C15U;
    return mixed >> 32;
  }

  std::array<std::uint16_t, kSlots> numbers_;
  std::array<Shape, kMaxShapes> shapes_;
  std::size_t count_ = 0;
};

}  // namespace smon_rt
