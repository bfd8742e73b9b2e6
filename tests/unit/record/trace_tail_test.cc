#include "record/trace_tail.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "format/trace_encoder.h"

namespace smon_rt {
namespace {

/// A trace file without a name.
class TraceTailTest : public testing::Test {
 protected:
  void SetUp() override {
    file_ = std::tmpfile();
    ASSERT_NE(file_, nullptr);
    std::string packets;
    TraceIdentity identity;
    identity.rank = 3;
    append_identity(packets, identity);
    write(packets);
  }
  void TearDown() override { std::fclose(file_); }

  int fd() const { return ::fileno(file_); }
  void write(std::string_view bytes) {
    ASSERT_EQ(::pwrite(fd(), bytes.data(), bytes.size(), static_cast<off_t>(size_)),
              static_cast<ssize_t>(bytes.size()));
    size_ += bytes.size();
  }
  /// As the drain thread writes them.
  void write_spans(std::uint32_t ring_id, std::uint64_t first, std::size_t count) {
    std::vector<Span> spans(count);
    for (std::size_t i = 0; i < count; ++i) {
      spans[i].start = static_cast<std::int64_t>(first + i) * 1'000'003;
      spans[i].end = spans[i].start + static_cast<std::int64_t>((first + i) * 7919 % 1'000'000);
    }
    std::string packets;
    append_spans(packets, ring_id, first, spans);
    write(packets);
  }

  std::FILE* file_ = nullptr;
  std::uint64_t size_ = 0;
};

TEST_F(TraceTailTest, WhatIsSettledIsNotReadHoweverLargeTheFileIs) {
  std::uint64_t first = 0;
  for (; size_ < std::uint64_t{24} << 20; first += 1000) write_spans(1, first, 1000);
  const std::uint64_t settled = size_;
  write_spans(1, first, 700);
  write_spans(2, 40, 10);
  const auto tail = read_trace_tail(fd(), "trace", settled);
  ASSERT_TRUE(tail) << tail.error().message;
  EXPECT_EQ(tail->next_index.at(1), first + 700);
  EXPECT_EQ(tail->next_index.at(2), 50u);
  EXPECT_EQ(tail->whole_bytes, size_);
  EXPECT_EQ(tail->identity.rank, 3);
  EXPECT_LT(tail->read_bytes, (size_ - settled) + 2000) << "the first packet, and what is not settled";
  // Without being told it finds the same, from the last 8 MiB.
  const auto all = read_trace_tail(fd(), "trace");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->next_index, tail->next_index);
  EXPECT_EQ(all->whole_bytes, tail->whole_bytes);
  EXPECT_GT(all->read_bytes, std::uint64_t{8} << 20);
}

TEST_F(TraceTailTest, AFileThatIsSettledToItsEndHasNothingToRead) {
  write_spans(1, 0, 1000);
  const auto tail = read_trace_tail(fd(), "trace", size_);
  ASSERT_TRUE(tail);
  EXPECT_TRUE(tail->next_index.empty());
  EXPECT_EQ(tail->whole_bytes, size_);
}

TEST_F(TraceTailTest, APlaceWhereNoPacketBeginsIsNotBelieved) {
  for (int i = 0; i < 5; ++i) write_spans(1, static_cast<std::uint64_t>(i) * 100, 100);
  for (const std::uint64_t settled : {std::uint64_t{1}, size_ / 2, size_ - 1, size_ + 1, ~std::uint64_t{0}}) {
    const auto tail = read_trace_tail(fd(), "trace", settled);
    ASSERT_TRUE(tail) << settled;
    EXPECT_EQ(tail->next_index.at(1), 500u) << settled;
    EXPECT_EQ(tail->whole_bytes, size_) << settled;
  }
}

TEST_F(TraceTailTest, AFileThatEndedIsClosedAndOneThatGoesOnElsewhereIsNot) {
  for (const std::string_view reason : {kRotated, std::string_view("stop")}) {
    std::string packet;
    append_end(packet, reason);
    write(packet);
    const auto tail = read_trace_tail(fd(), "trace");
    ASSERT_TRUE(tail);
    EXPECT_EQ(tail->is_closed, reason == "stop");
  }
}

TEST_F(TraceTailTest, AHalfPacketAtTheEndIsLeftOut) {
  write_spans(1, 0, 100);
  const std::uint64_t settled = size_;
  write_spans(1, 100, 100);
  const std::uint64_t whole = size_;
  write("\x0a\x7fhalf a packet");
  const auto tail = read_trace_tail(fd(), "trace", settled);
  ASSERT_TRUE(tail);
  EXPECT_EQ(tail->whole_bytes, whole);
  EXPECT_EQ(tail->file_bytes, size_);
  EXPECT_EQ(tail->next_index.at(1), 200u);
}

}  // namespace
}  // namespace smon_rt
