#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

namespace smon_rt {

/// Why something could not be done: what, which file or name, what to do — one line, no trailing newline.
struct Error {
  std::string message;

  friend bool operator==(const Error&, const Error&) = default;
};

/// A value or an `Error`: the part of `std::expected<T, Error>` that we use, spelled the same, so that it can be
/// replaced by it once the oldest compiler has it. An `Error` converts implicitly, so `return Error{"..."};` works.
///
/// Reading `value()` of an error, or `error()` of a value, is a bug of the caller: asserted in debug builds.
template <typename T>
class [[nodiscard]] Result {
  static_assert(!std::is_same_v<std::remove_cv_t<T>, Error>, "a Result<Error> could not tell its two states apart");
  static_assert(!std::is_reference_v<T>, "hold a pointer instead");

 public:
  using value_type = T;
  using error_type = Error;

  template <typename U = T>
    requires(std::is_constructible_v<T, U &&> && !std::is_same_v<std::remove_cvref_t<U>, Result> &&
             !std::is_same_v<std::remove_cvref_t<U>, Error>)
  Result(U&& value) : state_(std::in_place_index<0>, std::forward<U>(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }

  T& value() & noexcept { return *checked_value(); }
  const T& value() const& noexcept { return *const_cast<Result*>(this)->checked_value(); }
  T&& value() && noexcept { return std::move(*checked_value()); }

  T& operator*() & noexcept { return value(); }
  const T& operator*() const& noexcept { return value(); }
  T&& operator*() && noexcept { return std::move(*this).value(); }
  T* operator->() noexcept { return checked_value(); }
  const T* operator->() const noexcept { return const_cast<Result*>(this)->checked_value(); }

  const Error& error() const& noexcept { return *const_cast<Result*>(this)->checked_error(); }
  Error&& error() && noexcept { return std::move(*checked_error()); }

  template <typename U>
  T value_or(U&& other) const& {
    return has_value() ? value() : static_cast<T>(std::forward<U>(other));
  }
  template <typename U>
  T value_or(U&& other) && {
    return has_value() ? std::move(*this).value() : static_cast<T>(std::forward<U>(other));
  }

 private:
  T* checked_value() noexcept {
    assert(has_value());
    return std::get_if<0>(&state_);
  }
  Error* checked_error() noexcept {
    assert(!has_value());
    return std::get_if<1>(&state_);
  }

  std::variant<T, Error> state_;
};

/// Done, or an `Error`: `return {};` says done.
template <>
class [[nodiscard]] Result<void> {
 public:
  using value_type = void;
  using error_type = Error;

  Result() = default;
  Result(Error error) : error_(std::move(error)) {}

  bool has_value() const noexcept { return !error_.has_value(); }
  explicit operator bool() const noexcept { return has_value(); }

  const Error& error() const& noexcept {
    assert(error_.has_value());
    return *error_;
  }
  Error&& error() && noexcept {
    assert(error_.has_value());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace smon_rt
