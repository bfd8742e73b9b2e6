// What the official protobuf library writes, in all the forms that it may take, we read as the same values.

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "collected_trace.h"
#include "format/trace_reader.h"
#include "oracle_frames.h"
#include "simulated_steps.h"
#include "smon_rt/v1/trace.pb.h"
#include "trace_samples.h"

namespace smon_rt {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using test::collect;
using test::CollectedTrace;

std::string sample() {
  std::string bytes = test::sample_file(test::SimulatedSteps(true).make(2));
  append_spans(bytes, 5, 0, test::random_spans(40, 77));
  append_comm_ops(bytes, test::random_comm_ops(40, 78));
  return bytes;
}

v1::Trace parsed_sample() {
  v1::Trace trace;
  EXPECT_TRUE(trace.ParseFromString(sample()));
  return trace;
}

/// The sample's packets, each rewritten by a function of the official library's message, read as the sample.
template <typename Rewrite>
void expect_same_content(Rewrite rewrite) {
  std::string bytes;
  const v1::Trace parsed = parsed_sample();
  for (const v1::TracePacket& packet : parsed.packet()) bytes += test::framed(rewrite(packet));
  const CollectedTrace trace = collect(bytes);
  EXPECT_EQ(trace.damages, std::vector<test::Damage>{});
  EXPECT_TRUE(trace.same_content(collect(sample())));
}

TEST(OursReadsOracle, PacketsAsTheOfficialLibraryWritesThem) {
  expect_same_content([](const v1::TracePacket& packet) { return packet; });
}

/// The schema with every column not packed.
class UnpackedSchema {
 public:
  UnpackedSchema() {
    google::protobuf::FileDescriptorProto file;
    v1::Trace::descriptor()->file()->CopyTo(&file);
    for (auto& message : *file.mutable_message_type()) {
      for (auto& field : *message.mutable_field()) {
        const bool is_column = field.label() == google::protobuf::FieldDescriptorProto::LABEL_REPEATED &&
                               field.type() != google::protobuf::FieldDescriptorProto::TYPE_MESSAGE;
        if (is_column) field.mutable_options()->set_packed(false);
      }
    }
    packet_ = pool_.BuildFile(file)->FindMessageTypeByName("TracePacket");
  }

  std::string serialize(const v1::TracePacket& packet) {
    const std::unique_ptr<Message> message(factory_.GetPrototype(packet_)->New());
    EXPECT_TRUE(message->ParseFromString(packet.SerializeAsString()));
    return message->SerializeAsString();
  }

 private:
  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_{&pool_};
  const google::protobuf::Descriptor* packet_ = nullptr;
};

TEST(OursReadsOracle, ColumnsThatAreNotPacked) {
  UnpackedSchema schema;
  std::size_t packed_bytes = 0;
  std::size_t unpacked_bytes = 0;
  expect_same_content([&](v1::TracePacket packet) {
    packet.clear_crc32();
    const std::string unpacked = schema.serialize(packet);
    packed_bytes += packet.ByteSizeLong();
    unpacked_bytes += unpacked.size();
    return unpacked;
  });
  EXPECT_GT(unpacked_bytes, packed_bytes * 5 / 4);
}

/// Bytes of a message with each field, and each half of a column, apart and in random order. That is what "the fields
/// of a message come in any order" means for a reader; a message within is shuffled too.
std::string shuffled(const Message& message, std::mt19937_64& random) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  std::shuffle(fields.begin(), fields.end(), random);
  std::string bytes;
  for (const FieldDescriptor* field : fields) {
    const std::unique_ptr<Message> part(message.New());
    const auto& reflection = *part->GetReflection();
    part->CopyFrom(message);
    for (const FieldDescriptor* other : fields) {
      if (other != field) reflection.ClearField(part.get(), other);
    }
    if (!field->is_repeated() && field->message_type() != nullptr) {
      const std::string inner = shuffled(reflection.GetMessage(*part, field), random);
      std::string tagged(1, static_cast<char>(field->number() << 3 | 2));
      if (field->number() >= 16) tagged = {static_cast<char>((field->number() << 3 | 2) | 0x80), 1};
      std::uint64_t length = inner.size();
      for (; length >= 0x80; length >>= 7) tagged.push_back(static_cast<char>(length | 0x80));
      tagged.push_back(static_cast<char>(length));
      bytes += tagged + inner;
      continue;
    }
    if (!field->is_repeated() || field->message_type() != nullptr) {
      bytes += part->SerializeAsString();
      continue;
    }
    // A column in two pieces; the library writes each piece as a field of its own.
    const int count = reflection.FieldSize(*part, field);
    const std::unique_ptr<Message> rest(part->New());
    rest->CopyFrom(*part);
    const int cut = static_cast<int>(random() % (static_cast<std::uint64_t>(count) + 1));
    while (reflection.FieldSize(*part, field) > cut) reflection.RemoveLast(part.get(), field);
    for (int i = 0; i + cut < count; ++i) reflection.SwapElements(rest.get(), field, i, i + cut);
    while (reflection.FieldSize(*rest, field) > count - cut) reflection.RemoveLast(rest.get(), field);
    bytes += part->SerializeAsString() + rest->SerializeAsString();
  }
  return bytes;
}

TEST(OursReadsOracle, FieldsInAnyOrderAndColumnsInPieces) {
  std::mt19937_64 random(4);
  for (int round = 0; round < 20; ++round) {
    expect_same_content([&](v1::TracePacket packet) {
      packet.clear_crc32();
      const std::string bytes = shuffled(packet, random);
      v1::TracePacket again;
      EXPECT_TRUE(again.ParseFromString(bytes));
      EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(again, packet));
      return bytes;
    });
  }
}

void add_unknown_fields(Message& message) {
  auto& unknown = *message.GetReflection()->MutableUnknownFields(&message);
  unknown.AddVarint(900, 1'234'567'890'123);
  unknown.AddFixed32(901, 7);
  unknown.AddFixed64(902, 8);
  unknown.AddLengthDelimited(903, "what a later writer adds");
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->message_type() == nullptr || field->is_map()) continue;
    for (int i = 0; field->is_repeated() && i < message.GetReflection()->FieldSize(message, field); ++i) {
      add_unknown_fields(*message.GetReflection()->MutableRepeatedMessage(&message, field, i));
    }
    if (!field->is_repeated()) add_unknown_fields(*message.GetReflection()->MutableMessage(&message, field));
  }
}

TEST(OursReadsOracle, UnknownFieldsArePassedOverInEveryMessage) {
  expect_same_content([](v1::TracePacket packet) {
    add_unknown_fields(packet);
    return packet;
  });
}

TEST(OursReadsOracle, AMessageInTwoPartsIsOneMessage) {
  // Concatenated messages are one message to protobuf, so a message within a message may come in two parts.
  expect_same_content([](v1::TracePacket packet) {
    packet.clear_crc32();
    v1::TracePacket rest;
    if (packet.has_spans()) {
      packet.mutable_spans()->mutable_start_ns()->Swap(rest.mutable_spans()->mutable_start_ns());
    } else if (packet.has_identity()) {
      rest.mutable_identity()->set_host(packet.identity().host());
      packet.mutable_identity()->clear_host();
    }
    return packet.SerializeAsString() + rest.SerializeAsString();
  });
}

TEST(OursReadsOracle, TheLastOfTwoContentsCounts) {
  v1::TracePacket first;
  first.mutable_end()->set_reason("not this");
  v1::TracePacket second;
  second.mutable_losses()->set_stale_tokens(3);
  const CollectedTrace trace = collect(test::framed(first.SerializeAsString() + second.SerializeAsString()));
  EXPECT_TRUE(trace.ends.empty());
  ASSERT_EQ(trace.losses.size(), 1U);
  EXPECT_EQ(trace.losses[0].stale_tokens, 3U);
}

TEST(OursReadsOracle, AContentThatALaterWriterAddsIsCountedAndPassedOver) {
  v1::TracePacket packet;
  packet.GetReflection()->MutableUnknownFields(&packet)->AddLengthDelimited(100, "new");
  const CollectedTrace trace = collect(test::framed(packet) + test::sample_file({}));
  EXPECT_TRUE(trace.damages.empty());
  EXPECT_EQ(trace.summary.unknown_packet_count, 1U);
  EXPECT_EQ(trace.identities.size(), 1U);
}

TEST(OursReadsOracle, MissingFieldsHaveTheValuesThatTheSchemaGivesThem) {
  v1::TracePacket identity;
  identity.mutable_identity()->mutable_layout();
  v1::TracePacket spans;
  spans.set_first_step(6);
  spans.mutable_spans()->set_span_count(3);
  for (const int start : {10, 20, 30}) spans.mutable_spans()->add_start_ns(start);
  for (const int duration : {1, 2, 3}) spans.mutable_spans()->add_duration_ns(static_cast<std::uint64_t>(duration));
  spans.mutable_spans()->add_kind(static_cast<std::uint32_t>(Kind::kUser));
  const CollectedTrace trace = collect(test::framed(identity) + test::framed(spans));
  EXPECT_TRUE(trace.damages.empty());
  ASSERT_EQ(trace.identities.size(), 1U);
  EXPECT_EQ(trace.identities[0].world_size, 0);
  EXPECT_EQ(trace.identities[0].layout.pp_size, 0);
  Span expected;
  expected.kind = Kind::kUser;
  expected.step = 6;
  std::vector<Span> all(3, expected);
  all[0].start = 10, all[0].end = 11;
  all[1].start = 31, all[1].end = 33;
  all[2].start = 63, all[2].end = 66;
  EXPECT_TRUE(test::equal(trace.all_spans(), all));
}

}  // namespace
}  // namespace smon_rt
