#include "record/trace_tail.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <span>
#include <system_error>
#include <vector>

#include "format/trace_reader.h"
#include "record/drain.h"

namespace smon_rt {
namespace {

constexpr std::uint64_t kTailBytes = std::uint64_t{8} << 20;
constexpr std::uint64_t kMaxIdentityBytes = std::uint64_t{1} << 20;
constexpr unsigned char kPacketKey = 0x0a;  // field 1 of Trace, length-delimited

/// Where a packet's frame ends, from its first bytes; nothing if these do not begin a packet.
std::optional<std::uint64_t> frame_bytes(std::span<const unsigned char> head) {
  if (head.empty() || head[0] != kPacketKey) return std::nullopt;
  std::uint64_t length = 0;
  for (std::size_t i = 1; i < head.size() && i <= 9; ++i) {
    length |= std::uint64_t{head[i] & 0x7fu} << (7 * (i - 1));
    if ((head[i] & 0x80) == 0) return i + 1 + length;
  }
  return std::nullopt;
}

bool read_at(int fd, std::uint64_t offset, std::span<std::byte> target, TraceTail& tail) {
  tail.read_bytes += target.size();
  while (!target.empty()) {
    const ssize_t count = ::pread(fd, target.data(), target.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    offset += static_cast<std::uint64_t>(count);
    target = target.subspan(static_cast<std::size_t>(count));
  }
  return true;
}

class TailVisitor final : public TraceVisitor {
 public:
  explicit TailVisitor(TraceTail& tail) : tail_(tail) {}
  void on_spans(const SpanBatch& batch) override {
    if (batch.ring_id == kOpenSpansRing) {
      tail_.has_open_spans = true;
      return;
    }
    std::uint64_t& next = tail_.next_index[batch.ring_id];
    next = std::max(next, batch.first_index + batch.spans.size());
  }
  void on_step_times(std::span<const StepTime> steps) override {
    for (const StepTime& step : steps) tail_.steps.emplace(step.step, step.start_ns);
  }
  void on_names(const TraceNames& names) override {
    for (const TraceCommunicator& communicator : names.communicators) tail_.communicators.insert(communicator.id);
  }
  void on_end(std::string_view reason) override { tail_.is_closed = reason != kRotated; }

 private:
  TraceTail& tail_;
};

class IdentityVisitor final : public TraceVisitor {
 public:
  void on_identity(const TraceIdentity& identity) override {
    if (!identity_) identity_ = identity;
  }
  std::optional<TraceIdentity> identity_;
};

/// The length of the frame at this place; nothing where none begins that is whole.
std::optional<std::uint64_t> whole_frame_at(int fd, std::uint64_t offset, TraceTail& tail) {
  std::array<unsigned char, 11> head{};
  const std::uint64_t left = tail.file_bytes - std::min(tail.file_bytes, offset);
  const auto bytes = std::span(head).first(std::min<std::uint64_t>(head.size(), left));
  if (bytes.empty() || !read_at(fd, offset, std::as_writable_bytes(bytes), tail)) return std::nullopt;
  const std::optional<std::uint64_t> frame = frame_bytes(bytes);
  return frame && *frame <= left ? frame : std::nullopt;
}

/// Follows the frames from here on to the last whole one; where those begin that are worth reading.
std::uint64_t follow_frames(int fd, std::uint64_t from, TraceTail& tail) {
  std::uint64_t tail_begin = from;
  tail.whole_bytes = from;
  while (const auto frame = whole_frame_at(fd, tail.whole_bytes, tail)) {  // else cut, or damaged: the rest is no use
    tail.whole_bytes += *frame;
    if (tail.file_bytes - tail.whole_bytes > kTailBytes) tail_begin = tail.whole_bytes;
  }
  return tail_begin;
}

/// Reads the last whole packets, none before `from`. An error too if they are damaged, and `from` is not the beginning.
Result<void> read_from(int fd, const std::string& path, std::uint64_t from, TraceTail& tail) {
  const std::uint64_t begin = follow_frames(fd, from, tail);
  // One packet of that size is none of ours.
  if (tail.whole_bytes - begin > 2 * kTailBytes) return Error{path + " has a packet that is too large to read"};
  std::vector<std::byte> bytes(tail.whole_bytes - begin);
  if (!read_at(fd, begin, bytes, tail)) return Error{path + ": " + std::generic_category().message(errno)};
  TailVisitor visitor(tail);
  if (read_trace(bytes, {}, visitor).damage_count != 0 && from != 0) return Error{path + " is damaged"};
  return {};
}

}  // namespace

Result<TraceTail> read_trace_tail(int fd, const std::string& path, std::uint64_t settled_bytes) {
  TraceTail tail;
  struct stat status{};
  if (::fstat(fd, &status) != 0) return Error{path + ": " + std::generic_category().message(errno)};
  tail.file_bytes = static_cast<std::uint64_t>(status.st_size);

  const std::uint64_t first_frame = whole_frame_at(fd, 0, tail).value_or(0);
  if (first_frame == 0 || first_frame > kMaxIdentityBytes) return Error{path + " does not begin as a trace file"};
  std::vector<std::byte> bytes(first_frame);
  IdentityVisitor identity;
  if (read_at(fd, 0, bytes, tail)) read_trace(bytes, {}, identity);
  if (!identity.identity_) return Error{path + " does not begin with who recorded it"};
  tail.identity = *std::move(identity.identity_);

  // Not believed unless a whole packet lies there, or the end: what is appended later goes where the last one ends.
  if (settled_bytes >= first_frame && settled_bytes <= tail.file_bytes) {
    TraceTail settled = tail;
    if (read_from(fd, path, settled_bytes, settled) &&
        (settled.whole_bytes > settled_bytes || settled_bytes == tail.file_bytes)) {
      return settled;
    }
    tail.read_bytes = settled.read_bytes;
  }
  if (Result<void> read = read_from(fd, path, 0, tail); !read) return read.error();
  return tail;
}

}  // namespace smon_rt
