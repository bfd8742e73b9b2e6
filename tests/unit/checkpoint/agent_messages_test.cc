// Messages to and from an agent: what the official protobuf library writes we read, and the reverse; any bytes are
// borne.

#include "checkpoint/agent_messages.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/message_differencer.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "smon_rt/v1/agent.pb.h"

namespace smon_rt {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;
using Random = std::mt19937_64;

std::string random_text(Random& random) {
  std::string text(1 + random() % 12, ' ');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  return text;
}

void fill(Message& message, Random& random);

void fill_field(Message& message, const FieldDescriptor& field, Random& random) {
  const auto& reflection = *message.GetReflection();
  const bool is_repeated = field.is_repeated();
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return fill(is_repeated ? *reflection.AddMessage(&message, &field) : *reflection.MutableMessage(&message, &field),
                  random);
    case FieldDescriptor::CPPTYPE_UINT32:
      return is_repeated ? reflection.AddUInt32(&message, &field, static_cast<std::uint32_t>(random()))
                         : reflection.SetUInt32(&message, &field, static_cast<std::uint32_t>(random()));
    case FieldDescriptor::CPPTYPE_INT32:
      return reflection.SetInt32(&message, &field, static_cast<std::int32_t>(random()));
    case FieldDescriptor::CPPTYPE_UINT64:
      return reflection.SetUInt64(&message, &field, random());
    case FieldDescriptor::CPPTYPE_BOOL:
      return reflection.SetBool(&message, &field, random() % 2 == 0);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const auto& values = *field.enum_type();
      return reflection.SetEnumValue(&message, &field, static_cast<int>(random() % values.value_count()));
    }
    case FieldDescriptor::CPPTYPE_STRING:
      return reflection.SetString(&message, &field, random_text(random));
    default:
      FAIL() << "a type that messages did not have: " << field.full_name();
  }
}

/// Every field with a value, of a oneof the one that was chosen.
void fill(Message& message, Random& random) {
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor& field = *message.GetDescriptor()->field(i);
    if (field.real_containing_oneof() != nullptr) continue;
    const std::uint64_t count = field.is_repeated() ? random() % 4 : 1;
    for (std::uint64_t k = 0; k < count; ++k) fill_field(message, field, random);
  }
}

template <typename Theirs, typename Decode>
void expect_round_trips(Decode&& decode) {
  Random random(7);
  const auto& content = *Theirs::descriptor()->oneof_decl(0);
  for (int field = 0; field < content.field_count(); ++field) {
    for (int round = 0; round < 50; ++round) {
      Theirs theirs;
      fill_field(theirs, *content.field(field), random);
      auto ours = decode(theirs.SerializeAsString());
      ASSERT_TRUE(ours) << content.field(field)->name() << ": " << ours.error().message;
      Theirs back;
      ASSERT_TRUE(back.ParseFromString(agent_messages::encode(*ours)));
      EXPECT_TRUE(MessageDifferencer::Equals(theirs, back)) << theirs.DebugString() << " became " << back.DebugString();
    }
  }
}

TEST(AgentMessages, EveryFieldOfEveryMessageOfTrainersIsReadAndWrittenAsProtobufDoes) {
  expect_round_trips<v1::TrainerMessage>(agent_messages::decode_trainer_message);
}

TEST(AgentMessages, EveryFieldOfEveryMessageOfAgentsIsReadAndWrittenAsProtobufDoes) {
  expect_round_trips<v1::AgentMessage>(agent_messages::decode_agent_message);
}

TEST(AgentMessages, WhatIsNoMessageIsRefusedInOneLine) {
  for (const std::string& bytes : {std::string(), std::string("\x0a\x7f"), std::string("\xff\xff\xff\xff"),
                                   std::string(agent_messages::kMaxPacketBytes + 1, '\0')}) {
    const auto decoded = agent_messages::decode_trainer_message(bytes);
    ASSERT_FALSE(decoded);
    EXPECT_EQ(decoded.error().message.find('\n'), std::string::npos);
    EXPECT_FALSE(agent_messages::decode_agent_message(bytes));
  }
}

TEST(AgentMessages, DamagedPacketsNeverDoMoreThanFail) {
  Random random(11);
  v1::AgentMessage theirs;
  fill(*theirs.mutable_status(), random);
  fill(*theirs.mutable_status()->add_ranks(), random);
  const std::string intact = theirs.SerializeAsString();
  for (int round = 0; round < 5000; ++round) {
    std::string bytes = intact.substr(0, random() % (intact.size() + 1));
    for (int flips = 0; flips < 3 && !bytes.empty(); ++flips) bytes[random() % bytes.size()] ^= 1 << random() % 8;
    if (const auto decoded = agent_messages::decode_agent_message(bytes)) (void)agent_messages::encode(*decoded);
  }
}

TEST(AgentMessages, NumbersThatAreNotKnownYetBecomeUnknown) {
  v1::TrainerMessage theirs;
  theirs.mutable_skipped()->set_cause(static_cast<v1::SkipCause>(99));
  const auto ours = agent_messages::decode_trainer_message(theirs.SerializeAsString());
  ASSERT_TRUE(ours);
  EXPECT_EQ(std::get<agent_messages::Skipped>(*ours).cause, agent_messages::SkipCause::kUnknown);
}

TEST(AgentMessages, TextsThatAreNotUtf8AreWrittenSoThatOthersReadThem) {
  const std::string packet = agent_messages::encode(agent_messages::AgentMessage(agent_messages::Refused{"a\xff"}));
  v1::AgentMessage theirs;
  ASSERT_TRUE(theirs.ParseFromString(packet));
  EXPECT_EQ(theirs.refused().reason(), "a\xef\xbf\xbd");
}

}  // namespace
}  // namespace smon_rt
