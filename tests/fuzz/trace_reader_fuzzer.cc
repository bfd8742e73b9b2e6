// read_trace over any bytes. What it delivers is encoded again and must read as the same; what it reports must lie in
// the file, in order.
//
// Input: a first byte, then, if that is even, a file. If it is odd, the content of one packet, around which the right
// frame and checksum are put: otherwise mutations would hardly ever come past the checksum.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "format/crc32.h"
#include "format/once_visitor.h"
#include "format/span.h"
#include "format/trace_encoder.h"
#include "format/trace_reader.h"
#include "format/utf8.h"

namespace {

using namespace smon_rt;

void require(bool holds) {
  if (!holds) std::abort();
}

struct SpanCollector final : TraceVisitor {
  std::vector<Span> spans;
  void on_spans(const SpanBatch& batch) override { spans.insert(spans.end(), batch.spans.begin(), batch.spans.end()); }
};

/// Encodes all that it is told again, and reads that.
class Checker final : public TraceVisitor {
 public:
  explicit Checker(std::size_t file_bytes) : file_bytes_(file_bytes) {}

  void on_identity(const TraceIdentity& identity) override {
    struct : TraceVisitor {
      TraceIdentity identity;
      void on_identity(const TraceIdentity& value) override { identity = value; }
    } read;
    again_.clear();
    append_identity(again_, identity);
    require_one_packet(read);
    // What is no UTF-8 was replaced, and then keys of a map may have become one.
    const TraceIdentity first = read.identity;
    again_.clear();
    append_identity(again_, first);
    require_one_packet(read);
    require(read.identity == first || identity.sampling.sample_ratio != identity.sampling.sample_ratio);
    require(first.pid == identity.pid && first.layout.dp_rank == identity.layout.dp_rank);
  }
  void on_spans(const SpanBatch& batch) override {
    require(batch.spans.size() <= kMaxRowsPerPacket && batch.spans.size() * 2 <= file_bytes_ + 16);
    again_.clear();
    append_spans(again_, batch.ring_id, batch.first_index, batch.spans);
    SpanCollector read;
    require(read_trace(std::as_bytes(std::span(again_)), {}, read).damage_count == 0);
    require(read.spans.size() == batch.spans.size());
    require(batch.spans.empty() || std::memcmp(read.spans.data(), batch.spans.data(), batch.spans.size_bytes()) == 0);
  }
  void on_step_times(std::span<const StepTime> times) override {
    again_.clear();
    append_step_times(again_, times);
    struct : TraceVisitor {
      std::vector<StepTime> times;
      void on_step_times(std::span<const StepTime> values) override { times.assign(values.begin(), values.end()); }
    } read;
    if (!times.empty()) require_one_packet(read);
    require(read.times == std::vector<StepTime>(times.begin(), times.end()));
  }
  void on_names(const TraceNames& names) override {
    again_.clear();
    append_names(again_, names);
    struct : TraceVisitor {
      TraceNames names;
      void on_names(const TraceNames& values) override { names = values; }
    } read;
    require_one_packet(read);
    require(read.names.names.size() == names.names.size() && read.names.tracks.size() == names.tracks.size());
    for (std::size_t i = 0; i < names.names.size(); ++i) {
      require(read.names.names[i].text == to_utf8(names.names[i].text));
    }
  }
  void on_losses(const TraceLosses& losses) override {
    again_.clear();
    append_losses(again_, losses);
    struct : TraceVisitor {
      TraceLosses losses;
      void on_losses(const TraceLosses& values) override { losses = values; }
    } read;
    require_one_packet(read);
    TraceLosses expected = losses;
    expected.sink_error = to_utf8(losses.sink_error);
    require(read.losses == expected);
  }
  void on_comm_ops(std::span<const TraceCommOp> ops) override {
    require(ops.size() * 3 <= file_bytes_ + 16);
    again_.clear();
    append_comm_ops(again_, ops);
    struct : TraceVisitor {
      std::vector<TraceCommOp> ops;
      void on_comm_ops(std::span<const TraceCommOp> values) override {
        ops.insert(ops.end(), values.begin(), values.end());
      }
    } read;
    require(read_trace(std::as_bytes(std::span(again_)), {}, read).damage_count == 0);
    require(read.ops == std::vector<TraceCommOp>(ops.begin(), ops.end()));
  }
  void on_comm_channels(std::span<const TraceCommChannel> channels) override {
    again_.clear();
    append_comm_channels(again_, channels);
    struct : TraceVisitor {
      std::vector<TraceCommChannel> channels;
      void on_comm_channels(std::span<const TraceCommChannel> values) override {
        channels.assign(values.begin(), values.end());
      }
    } read;
    if (!channels.empty()) require_one_packet(read);
    require(read.channels == std::vector<TraceCommChannel>(channels.begin(), channels.end()));
  }
  void on_damage(std::uint64_t offset, std::string_view what) override {
    require(offset < file_bytes_ && (damage_count_ == 0 || offset > last_damage_));
    require(!what.empty() && what.find('\n') == std::string_view::npos);
    last_damage_ = offset;
    ++damage_count_;
  }

  std::uint64_t damage_count() const { return damage_count_; }

 private:
  void require_one_packet(TraceVisitor& visitor) {
    const TraceSummary summary = read_trace(std::as_bytes(std::span(again_)), {}, visitor);
    require(summary.packet_count == 1 && summary.damage_count == 0);
  }

  std::size_t file_bytes_;
  std::string again_;
  std::uint64_t damage_count_ = 0;
  std::uint64_t last_damage_ = 0;
};

std::string framed(std::string_view content) {
  const std::uint32_t crc = crc32(std::as_bytes(std::span(content)));
  std::string frame("\x0a");
  std::uint64_t length = content.size() + 5;
  for (; length >= 0x80; length >>= 7) frame.push_back(static_cast<char>(length | 0x80));
  frame.push_back(static_cast<char>(length));
  frame.push_back('\x0d');
  for (int shift = 0; shift < 32; shift += 8) frame.push_back(static_cast<char>(crc >> shift));
  frame += content;
  return frame;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string file = data[0] % 2 == 0 ? std::string(input) : framed(input);
  Checker checker(file.size());
  const TraceSummary all = read_trace(std::as_bytes(std::span(file)), {}, checker);
  require(all.damage_count == checker.damage_count());

  SpanCollector spans_of_one, spans_of_both;
  OnceVisitor one(spans_of_one), both(spans_of_both);
  read_trace(std::as_bytes(std::span(file)), {}, one);
  read_trace(std::as_bytes(std::span(file)), {}, both);
  read_trace(std::as_bytes(std::span(file)), {}, both);
  // All but what lies before any identity the first time, and after one the second.
  require(spans_of_both.spans.size() >= spans_of_one.spans.size());
  require(spans_of_both.spans.size() <= 2 * spans_of_one.spans.size());

  TraceVisitor nothing;
  const TraceSummary some = read_trace(std::as_bytes(std::span(file)), {.first_step = 2, .last_step = 5}, nothing);
  require(some.packet_count == all.packet_count && some.filtered_packet_count <= some.packet_count);
  return 0;
}
