#include "record/request_file.h"

#include <gtest/gtest.h>

#include <string>

namespace smon_rt {
namespace {

TEST(SamplingRequest, IsReadFromAFlatObject) {
  const auto request = parse_sampling_request(R"({"first_step": 1200, "step_count": 20})");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(*request, (SamplingRequest{1200, 20, ""}));
}

TEST(SamplingRequest, SkipsKeysItDoesNotKnow) {
  const auto request = parse_sampling_request(
      " {\"by\" : \"smon \\\"trace\\\"\", "
      "\"step_count\":1,\n\"x\":-1.5e3,\"y\":null,\"first_step\":0,\"run_id\":\"a\"} ");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(*request, (SamplingRequest{0, 1, "a"}));
}

TEST(SamplingRequest, RefusesWhatIsNoRequest) {
  for (const std::string text : {
           "",
           "{",
           "{}",
           "[]",
           "null",
           "{\"first_step\": 1}",
           "{\"step_count\": 1}",
           "{\"first_step\": -1, \"step_count\": 1}",
           "{\"first_step\": 1, \"step_count\": 0}",
           "{\"first_step\": 1, \"step_count\": 10001}",
           "{\"first_step\": 1.5, \"step_count\": 1}",
           "{\"first_step\": \"1\", \"step_count\": 1}",
           "{\"first_step\": 1, \"step_count\": 1} x",
           "{\"first_step\": 1, \"step_count\": 1",
           "{\"first_step\": {}, \"step_count\": 1}",
           "{\"first_step\": 99999999999999999999, \"step_count\": 1}",
           "{\"first_step\": 1, \"step_count\": }",
           "{\"first_step\": 1 \"step_count\": 1}",
           "{\"a",
           "{\"a\\",
       }) {
    const auto request = parse_sampling_request(text);
    ASSERT_FALSE(request) << text;
    EXPECT_EQ(request.error().message.rfind("request.json is ignored: ", 0), 0u) << text;
  }
  EXPECT_FALSE(parse_sampling_request(std::string(kMaxRequestBytes + 1, ' ')));
}

TEST(SamplingRequest, EveryCutIsRefused) {
  const std::string whole = R"({"first_step": 1200, "step_count": 20})";
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(parse_sampling_request(std::string_view(whole).substr(0, size))) << size;
  }
}

TEST(SamplingRequest, WhatIsWrittenIsReadAgain) {
  EXPECT_EQ(encode_sampling_request({1200, 20, "a run"}),
            "{\"first_step\": 1200, \"step_count\": 20, \"run_id\": \"a run\"}\n");
  for (const std::string run_id : {"", "run", "with \"quotes\" and \\", "\xc3\xbc"}) {
    const SamplingRequest request{0, 10'000, run_id};
    const auto read = parse_sampling_request(encode_sampling_request(request));
    ASSERT_TRUE(read) << run_id;
    EXPECT_EQ(*read, request);
  }
  for (const std::string& run_id : {std::string("a\nb"), std::string(5000, 'x')}) {
    const auto read = parse_sampling_request(encode_sampling_request({7, 1, run_id}));
    ASSERT_TRUE(read) << run_id.size();
    EXPECT_EQ(*read, (SamplingRequest{7, 1, ""}));
  }
}

}  // namespace
}  // namespace smon_rt
