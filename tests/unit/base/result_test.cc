#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace smon_rt {
namespace {

Result<int> parse_digit(char c) {
  if (c < '0' || c > '9') return Error{std::string("not a digit: ") + c};
  return c - '0';
}

Result<void> require_digit(char c) {
  Result<int> digit = parse_digit(c);
  if (!digit) return std::move(digit).error();
  return {};
}

TEST(Result, HoldsTheValueWhenThereIsOne) {
  const Result<int> result = parse_digit('7');
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(static_cast<bool>(result));
  EXPECT_EQ(*result, 7);
  EXPECT_EQ(result.value(), 7);
}

TEST(Result, HoldsTheErrorOtherwise) {
  const Result<int> result = parse_digit('x');
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Error{"not a digit: x"});
}

TEST(Result, GivesTheOtherValueOnlyForAnError) {
  EXPECT_EQ(parse_digit('7').value_or(-1), 7);
  EXPECT_EQ(parse_digit('x').value_or(-1), -1);
}

TEST(Result, CarriesAnErrorOnToAnotherType) {
  EXPECT_TRUE(require_digit('7'));
  EXPECT_EQ(require_digit('x').error().message, "not a digit: x");
}

TEST(Result, MovesAValueThatCannotBeCopied) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(3);
  std::unique_ptr<int> taken = std::move(result).value();
  ASSERT_NE(taken, nullptr);
  EXPECT_EQ(*taken, 3);
}

TEST(Result, ReachesMembersThroughTheArrowAndChangesInPlace) {
  Result<std::vector<int>> result = std::vector<int>{1, 2};
  result->push_back(3);
  (*result)[0] = 9;
  EXPECT_EQ(result.value(), (std::vector<int>{9, 2, 3}));
}

TEST(Result, ConvertsToTheValueTypeOnTheWayIn) {
  const Result<std::string> result = "text";
  EXPECT_EQ(result->size(), 4u);
}

TEST(Result, CopiesAreIndependent) {
  Result<std::string> first = std::string("a");
  Result<std::string> second = first;
  *second = "b";
  EXPECT_EQ(*first, "a");
  EXPECT_EQ(*second, "b");
}

}  // namespace
}  // namespace smon_rt
