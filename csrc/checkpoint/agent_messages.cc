#include "checkpoint/agent_messages.h"

#include <protozero/pbf_reader.hpp>
#include <protozero/pbf_writer.hpp>

#include <array>
#include <type_traits>

#include "checkpoint/agent_message_fields.h"
#include "format/utf8.h"

namespace smon_rt::agent_messages {
namespace {

using protozero::data_view;
using protozero::pbf_reader;
using protozero::pbf_wire_type;
using protozero::pbf_writer;
using Tag = protozero::pbf_tag_type;

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
inline constexpr bool kIsFixed64 = false;
template <typename T>
inline constexpr bool kIsFixed64<Fixed64<T>> = true;

constexpr std::uint64_t last_of(Tier) {
  return static_cast<std::uint64_t>(Tier::kDisk);
}
constexpr std::uint64_t last_of(SkipCause) {
  return static_cast<std::uint64_t>(SkipCause::kDead);
}

// ---- writing

template <typename Message>
void write_fields(pbf_writer& out, const Message& message);

template <typename Value>
void write_field(pbf_writer& out, Tag tag, const Value& value) {
  if constexpr (kIsFixed64<Value>) {
    if (value.value != 0) out.add_fixed64(tag, value.value);
  } else if constexpr (std::is_same_v<Value, std::vector<std::uint32_t>>) {
    if (!value.empty()) out.add_packed_uint32(tag, value.begin(), value.end());
  } else if constexpr (kIsVector<Value>) {
    for (const auto& each : value) write_field(out, tag, each);
  } else if constexpr (kIsOptional<Value>) {
    if (value.has_value()) write_field(out, tag, *value);
  } else if constexpr (std::is_same_v<Value, std::string>) {
    if (!value.empty()) out.add_string(tag, is_utf8(value) ? value : to_utf8(value));
  } else if constexpr (std::is_enum_v<Value>) {
    if (value != Value{}) out.add_enum(tag, static_cast<std::int32_t>(value));
  } else if constexpr (std::is_same_v<Value, bool>) {
    if (value) out.add_bool(tag, true);
  } else if constexpr (std::is_same_v<Value, std::int32_t>) {
    if (value != 0) out.add_int32(tag, value);
  } else if constexpr (std::is_integral_v<Value>) {
    if (value != 0) out.add_uint64(tag, value);
  } else {
    std::string bytes;
    pbf_writer inner(bytes);
    write_fields(inner, value);
    out.add_message(tag, bytes);
  }
}

template <typename Message>
void write_fields(pbf_writer& out, const Message& message) {
  visit_fields(message, [&](Tag tag, const auto& value) { write_field(out, tag, value); });
}

// ---- reading

template <typename Message>
void read_fields(data_view bytes, Message& message);

bool is_varint(const pbf_reader& in) {
  return in.wire_type() == pbf_wire_type::varint;
}
bool is_bytes(const pbf_reader& in) {
  return in.wire_type() == pbf_wire_type::length_delimited;
}

/// False, and nothing taken: the field has another wire type than the schema says, and so is unknown.
template <typename Value>
bool read_field(pbf_reader& in, Value& value) {
  if constexpr (kIsFixed64<Value>) {
    if (in.wire_type() != pbf_wire_type::fixed64) return false;
    value.value = in.get_fixed64();
    return true;
  } else if constexpr (std::is_same_v<Value, std::vector<std::uint32_t>>) {
    if (is_varint(in)) {
      value.push_back(in.get_uint32());
      return true;
    }
    if (!is_bytes(in)) return false;
    for (const std::uint32_t each : in.get_packed_uint32()) value.push_back(each);
    return true;
  } else if constexpr (kIsVector<Value>) {
    return is_bytes(in) && read_field(in, value.emplace_back());
  } else if constexpr (kIsOptional<Value>) {
    return is_bytes(in) && read_field(in, value.has_value() ? *value : value.emplace());
  } else if constexpr (std::is_same_v<Value, std::string>) {
    if (!is_bytes(in)) return false;
    value = in.get_string();
    return true;
  } else if constexpr (std::is_integral_v<Value> || std::is_enum_v<Value>) {
    if (!is_varint(in)) return false;
    const std::uint64_t number = in.get_uint64();
    if constexpr (std::is_enum_v<Value>) {
      value = number <= last_of(Value{}) ? static_cast<Value>(number) : Value{};
    } else if constexpr (std::is_same_v<Value, bool>) {
      value = number != 0;
    } else {
      value = static_cast<Value>(number);
    }
    return true;
  } else {
    if (!is_bytes(in)) return false;
    read_fields(in.get_view(), value);
    return true;
  }
}

template <typename Message>
void read_fields(data_view bytes, Message& message) {
  for (pbf_reader in(bytes); in.next();) {
    bool is_taken = false;
    visit_fields(message, [&](Tag tag, auto&& value) {
      if (!is_taken && in.tag() == tag) is_taken = read_field(in, value);
    });
    if (!is_taken) in.skip();
  }
}

// ---- the oneof around them

/// The field of each alternative, in the variant's order.
constexpr std::array<Tag, std::variant_size_v<TrainerMessage>> kTrainerTags{1, 2,  3,  4,  5,  6,  7, 8,
                                                                            9, 10, 11, 12, 16, 17, 18};
constexpr std::array<Tag, std::variant_size_v<AgentMessage>> kAgentTags{1, 2, 3, 4, 5, 6, 7, 16, 17};

template <typename Variant, std::size_t kCount>
std::string encode_as(const Variant& message, const std::array<Tag, kCount>& tags) {
  std::string packet;
  pbf_writer out(packet);
  std::visit(
      [&](const auto& content) {
        std::string bytes;
        pbf_writer inner(bytes);
        write_fields(inner, content);
        out.add_message(tags[message.index()], bytes);
      },
      message);
  return packet;
}

/// Of several contents the last one counts, and parts of one in a row are that one, as protobuf has it.
template <std::size_t kIndex = 0, typename Variant, std::size_t kCount>
bool read_content(pbf_reader& in, Variant& message, bool is_first, const std::array<Tag, kCount>& tags) {
  if constexpr (kIndex == kCount) {
    return false;
  } else {
    if (in.tag() != tags[kIndex]) return read_content<kIndex + 1>(in, message, is_first, tags);
    if (is_first || message.index() != kIndex) message.template emplace<kIndex>();
    read_fields(in.get_view(), std::get<kIndex>(message));
    return true;
  }
}

template <typename Variant, std::size_t kCount>
Result<Variant> decode_as(std::string_view packet, const std::array<Tag, kCount>& tags, const char* what) {
  if (packet.size() > kMaxPacketBytes) {
    return Error{std::string(what) + ": longer than " + std::to_string(kMaxPacketBytes) + " bytes"};
  }
  try {
    Variant message;
    bool is_first = true;
    for (pbf_reader in(packet.data(), packet.size()); in.next();) {
      if (is_bytes(in) && read_content(in, message, is_first, tags)) {
        is_first = false;
      } else {
        in.skip();
      }
    }
    if (is_first) return Error{std::string(what) + ": nothing in it that this version knows"};
    return message;
  } catch (const protozero::exception& exception) {
    return Error{std::string(what) + " is damaged: " + exception.what()};
  }
}

}  // namespace

std::string encode(const TrainerMessage& message) {
  return encode_as(message, kTrainerTags);
}

std::string encode(const AgentMessage& message) {
  return encode_as(message, kAgentTags);
}

Result<TrainerMessage> decode_trainer_message(std::string_view packet) {
  return decode_as<TrainerMessage>(packet, kTrainerTags, "message of a trainer");
}

Result<AgentMessage> decode_agent_message(std::string_view packet) {
  return decode_as<AgentMessage>(packet, kAgentTags, "message of an agent");
}

}  // namespace smon_rt::agent_messages
