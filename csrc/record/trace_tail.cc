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

bool read_at(int fd, std::uint64_t offset, std::span<std::byte> target) {
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

}  // namespace

Result<TraceTail> read_trace_tail(int fd, const std::string& path) {
  TraceTail tail;
  struct stat status{};
  if (::fstat(fd, &status) != 0) return Error{path + ": " + std::generic_category().message(errno)};
  tail.file_bytes = static_cast<std::uint64_t>(status.st_size);

  std::uint64_t first_frame = 0;
  std::uint64_t tail_begin = 0;
  while (tail.whole_bytes < tail.file_bytes) {
    std::array<unsigned char, 11> head{};
    const std::size_t head_bytes = std::min<std::uint64_t>(head.size(), tail.file_bytes - tail.whole_bytes);
    if (!read_at(fd, tail.whole_bytes, std::as_writable_bytes(std::span(head).first(head_bytes)))) break;
    const std::optional<std::uint64_t> frame = frame_bytes(std::span(head).first(head_bytes));
    if (!frame || *frame > tail.file_bytes - tail.whole_bytes) break;  // cut here, or damaged: what follows is no use
    if (first_frame == 0) first_frame = *frame;
    tail.whole_bytes += *frame;
    if (tail.file_bytes - std::min(tail.file_bytes, tail.whole_bytes) > kTailBytes) tail_begin = tail.whole_bytes;
  }
  if (first_frame == 0 || first_frame > kMaxIdentityBytes) return Error{path + " does not begin as a trace file"};

  std::vector<std::byte> bytes(first_frame);
  IdentityVisitor identity;
  if (read_at(fd, 0, bytes)) read_trace(bytes, {}, identity);
  if (!identity.identity_) return Error{path + " does not begin with who recorded it"};
  tail.identity = *std::move(identity.identity_);

  // One packet of that size is none of ours.
  if (tail.whole_bytes - tail_begin > 2 * kTailBytes) return Error{path + " has a packet that is too large to read"};
  bytes.resize(tail.whole_bytes - tail_begin);
  if (!read_at(fd, tail_begin, bytes)) return Error{path + ": " + std::generic_category().message(errno)};
  TailVisitor visitor(tail);
  read_trace(bytes, {}, visitor);
  return tail;
}

}  // namespace smon_rt
