#include "format/trace_reader.h"

#include <protozero/pbf_message.hpp>

#include <algorithm>
#include <optional>
#include <string>

#include "format/comm_op_decoder.h"
#include "format/crc32.h"
#include "format/record_decoder.h"
#include "format/span_decoder.h"
#include "format/trace_fields.h"

namespace smon_rt {
namespace {

using Fields = trace_fields::Packet;
using protozero::data_view;
using protozero::pbf_wire_type;

constexpr std::uint32_t length_delimited_tag(trace_fields::Trace field) {
  return static_cast<std::uint32_t>(field) << 3 | static_cast<std::uint32_t>(pbf_wire_type::length_delimited);
}
constexpr auto kPacketTag = static_cast<char>(length_delimited_tag(trace_fields::Trace::kPacket));
constexpr auto kCrcTag = static_cast<char>(static_cast<std::uint32_t>(Fields::kCrc32) << 3 |
                                           static_cast<std::uint32_t>(pbf_wire_type::fixed32));
constexpr std::size_t kCrcFieldBytes = 1 + sizeof(std::uint32_t);

/// A packet's bytes in the file, and whether they can be believed.
struct Frame {
  enum class State { kIntact, kNoPacket, kCut, kNoChecksum, kWrongChecksum };
  State state = State::kNoPacket;
  std::size_t end = 0;  // offset behind the packet
  data_view content;    // behind the checksum
};

const char* describe(Frame::State state) {
  switch (state) {
    case Frame::State::kCut:
      return "the packet ends behind the end of the file: the file was cut, or its length is damaged";
    case Frame::State::kNoChecksum:
      return "the packet has no checksum";
    case Frame::State::kWrongChecksum:
      return "the packet's checksum is wrong";
    default:
      return "no packet starts here";
  }
}

/// What a packet says before its content is decoded.
struct PacketHead {
  std::optional<std::uint32_t> first_step;
  std::optional<std::uint32_t> last_step;
  Fields content_field{};  // none: the packet is of a kind that a later writer added
  data_view first_part;
  std::string merged;  // the content, where a writer put it in several parts

  data_view content() const { return merged.empty() ? first_part : data_view(merged.data(), merged.size()); }

  // Parts of one message in a row are that message; a part of another one replaces it.
  void add_part(Fields field, data_view part) {
    if (field != content_field) {
      content_field = field;
      first_part = part;
      merged.clear();
      return;
    }
    if (merged.empty()) merged.assign(first_part.data(), first_part.size());
    merged.append(part.data(), part.size());
  }
};

PacketHead read_head(data_view packet) {
  PacketHead head;
  for (protozero::pbf_message<Fields> message(packet); message.next();) {
    const bool is_varint = message.wire_type() == pbf_wire_type::varint;
    const bool is_content = message.tag() >= Fields::kIdentity && message.tag() <= Fields::kCommChannels &&
                            message.wire_type() == pbf_wire_type::length_delimited;
    if (message.tag() == Fields::kFirstStep && is_varint) {
      head.first_step = message.get_uint32();
    } else if (message.tag() == Fields::kLastStep && is_varint) {
      head.last_step = message.get_uint32();
    } else if (is_content) {
      const Fields field = message.tag();  // of the field that get_view() passes over
      head.add_part(field, message.get_view());
    } else {
      message.skip();
    }
  }
  return head;
}

bool overlaps(const PacketHead& head, const StepFilter& filter) {
  if (!head.first_step || !head.last_step) return true;
  return *head.first_step <= filter.last_step && filter.first_step <= *head.last_step;
}

class Reader {
 public:
  Reader(std::span<const std::byte> bytes, const StepFilter& filter, TraceVisitor& visitor)
      : bytes_(bytes),
        data_(reinterpret_cast<const char*>(bytes.data())),
        filter_(filter),
        visitor_(visitor),
        search_budget_(kSearchBudgetRatio * bytes.size()) {}

  TraceSummary read() {
    std::size_t offset = 0;
    while (offset < bytes_.size()) {
      const Frame frame = frame_at(offset);
      if (frame.state == Frame::State::kIntact) {
        deliver(frame, offset);
        offset = frame.end;
      } else {
        summary_.has_end = false;
        report(offset, describe(frame.state));
        offset = find_intact(offset + 1);
      }
    }
    return summary_;
  }

 private:
  // Bytes of checksums, per byte of the file, spent on what looks like a packet during searches. A damaged file needs
  // far less; a made one could ask for its whole rest at every byte.
  static constexpr std::size_t kSearchBudgetRatio = 16;
  static constexpr int kMaxLengthShift = 56;  // 63 bits: what would not fit is no length

  Frame frame_at(std::size_t offset) const {
    Frame frame;
    if (data_[offset] != kPacketTag) return frame;
    // Without exceptions, which a search would throw at every other byte.
    std::size_t next = offset + 1;
    std::uint64_t length = 0;
    for (int shift = 0;; shift += 7, ++next) {
      if (shift > kMaxLengthShift) return frame;
      if (next == bytes_.size()) {
        frame.state = Frame::State::kCut;
        return frame;
      }
      const auto byte = std::to_integer<std::uint64_t>(bytes_[next]);
      length |= (byte & 0x7F) << shift;
      if (byte < 0x80) break;
    }
    ++next;
    if (length > bytes_.size() - next) {
      frame.state = Frame::State::kCut;
      return frame;
    }
    frame.end = next + length;
    if (length < kCrcFieldBytes || data_[next] != kCrcTag) {
      frame.state = Frame::State::kNoChecksum;
      return frame;
    }
    std::uint32_t stored = 0;
    for (std::size_t i = 0; i < sizeof(stored); ++i) {
      stored |= std::to_integer<std::uint32_t>(bytes_[next + 1 + i]) << (8 * i);
    }
    frame.content = data_view(data_ + next + kCrcFieldBytes, length - kCrcFieldBytes);
    const std::uint32_t computed = crc32(std::as_bytes(std::span(frame.content.data(), frame.content.size())));
    frame.state = stored == computed ? Frame::State::kIntact : Frame::State::kWrongChecksum;
    return frame;
  }

  /// Offset of the first intact packet from `offset` on; the end of the file if there is none.
  std::size_t find_intact(std::size_t offset) {
    for (; offset < bytes_.size(); ++offset) {
      const auto rest = bytes_.subspan(offset);
      const auto found = std::ranges::find(rest, static_cast<std::byte>(kPacketTag));
      offset += static_cast<std::size_t>(found - rest.begin());
      if (offset == bytes_.size()) break;
      const Frame frame = frame_at(offset);
      if (frame.state == Frame::State::kIntact) break;
      if (frame.content.size() > search_budget_) {
        report(offset, "too much of the file only looks like packets: the rest is not read");
        return bytes_.size();
      }
      search_budget_ -= frame.content.size();
    }
    return offset;
  }

  void deliver(const Frame& frame, std::size_t offset) {
    try {
      const PacketHead head = read_head(frame.content);
      summary_.has_end = head.content_field == Fields::kEnd;
      ++summary_.packet_count;
      if (!overlaps(head, filter_)) {
        ++summary_.filtered_packet_count;
        return;
      }
      visit(head);
    } catch (const protozero::exception& error) {
      report(offset, std::string("the packet's checksum is right, its content is not: ") + error.what());
    } catch (const DamagedPacket& error) {
      report(offset, std::string("the packet's checksum is right, its content is not: ") + error.what());
    }
  }

  void visit(const PacketHead& head) {
    const data_view content = head.content();
    switch (head.content_field) {
      case Fields::kIdentity:
        return visitor_.on_identity(decode_identity(content));
      case Fields::kSpans:
        return visitor_.on_spans(decoder_.decode_spans(content, head.first_step.value_or(0)));
      case Fields::kStepTimes:
        return visitor_.on_step_times(decoder_.decode_step_times(content));
      case Fields::kNames:
        return visitor_.on_names(decode_names(content));
      case Fields::kLosses:
        return visitor_.on_losses(decode_losses(content));
      case Fields::kClockSnapshot:
        return visitor_.on_clock_snapshot(decode_clock_snapshot(content));
      case Fields::kClockMap:
        return visitor_.on_clock_map(decode_clock_map(content));
      case Fields::kRecorderCost:
        return visitor_.on_recorder_cost(decode_recorder_cost(content));
      case Fields::kEnd:
        return visitor_.on_end(decode_end(content));
      case Fields::kLeftover:
        return visitor_.on_leftover(decode_leftover(content));
      case Fields::kCommOps:
        return visitor_.on_comm_ops(comm_decoder_.decode_ops(content, head.first_step.value_or(0)));
      case Fields::kCommCounts:
        return visitor_.on_comm_counts(decode_comm_counts(content));
      case Fields::kCommChannels:
        return visitor_.on_comm_channels(comm_decoder_.decode_channels(content));
      default:
        ++summary_.unknown_packet_count;
    }
  }

  void report(std::size_t offset, std::string_view what) {
    ++summary_.damage_count;
    visitor_.on_damage(offset, what);
  }

  std::span<const std::byte> bytes_;
  const char* data_;
  StepFilter filter_;
  TraceVisitor& visitor_;
  std::size_t search_budget_;
  SpanDecoder decoder_;
  CommOpDecoder comm_decoder_;
  TraceSummary summary_;
};

}  // namespace

TraceSummary read_trace(std::span<const std::byte> bytes, const StepFilter& filter, TraceVisitor& visitor) {
  return Reader(bytes, filter, visitor).read();
}

}  // namespace smon_rt
