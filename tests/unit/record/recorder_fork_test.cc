#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "record/recorder.h"
#include "recorder_fixture.h"

namespace smon_rt {
namespace {

using testing::every_step_sampled;
using testing::make_recorder;
using testing::RingReader;

template <typename InChild>
int in_child(InChild child) {
  const pid_t pid = ::fork();
  if (pid == 0) ::_exit(child());
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::vector<std::byte> bytes_of(Arena& arena) {
  std::vector<std::byte> bytes(arena.bytes());
  std::memcpy(bytes.data(), static_cast<const void*>(&arena.header()), bytes.size());
  return bytes;
}

TEST(RecorderFork, AMillionSpansOfAChildLeaveTheParentsTableUnchanged) {
  const auto recorder = make_recorder(every_step_sampled());
  recorder->step_begin(5);
  const std::uint16_t comm = recorder->register_communicator("dp", "dp", std::vector<std::int32_t>{0, 1});
  const Token open = recorder->begin(Kind::kForwardCompute);
  const auto before = bytes_of(recorder->arena());
  EXPECT_EQ(in_child([&] {
              int begun = 0;
              for (int i = 0; i < 1'000'000; ++i) {
                const Token token = recorder->begin(Kind::kUser);
                begun += token != 0 ? 1 : 0;
                recorder->end(token);
              }
              recorder->end(recorder->begin(Kind::kCollective, {.comm_id = comm}));
              recorder->metric(1, 1.0);
              recorder->step_begin(6);
              recorder->communication_completed(comm);
              recorder->annotate(open, {.microbatch = 3});
              recorder->end(open);
              return begun == 0 ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(bytes_of(recorder->arena()) == before);
  recorder->end(open);
  EXPECT_EQ(recorder->recorded_spans(), 1u);
  EXPECT_EQ(recorder->header().losses.stale_tokens.load(), 0u);
}

TEST(RecorderFork, EvenAStoreOfTheChildIntoTheArenaReachesNobody) {
  const auto recorder = make_recorder(every_step_sampled());
  recorder->step_begin(5);
  EXPECT_EQ(in_child([&] {
              const bool is_blank = recorder->header().step.load() == 0 && recorder->header().arena_bytes == 0;
              recorder->header().step.store(99);
              return is_blank ? 0 : 1;
            }),
            0);
  EXPECT_EQ(recorder->header().step.load(), 5);
}

TEST(RecorderFork, AChildThatDropsTheRecorderLeavesTheParentsFile) {
  auto recorder = make_recorder(every_step_sampled());
  const std::string path = recorder->arena().path();
  EXPECT_EQ(in_child([&] {
              recorder->pause();
              recorder->resume();
              const bool stays_off = !is_recording();
              recorder.reset();
              return stays_off ? 0 : 1;
            }),
            0);
  if (!path.empty()) {
    EXPECT_EQ(::access(path.c_str(), F_OK), 0);
  }
  recorder->end(recorder->begin(Kind::kUser));
  EXPECT_EQ(recorder->recorded_spans(), 1u);
  recorder.reset();
  if (!path.empty()) {
    EXPECT_NE(::access(path.c_str(), F_OK), 0);
  }
}

TEST(RecorderFork, AChildMayRecordItselfAsAnotherRank) {
  const auto recorder = make_recorder(every_step_sampled());
  const RecorderOptions same = every_step_sampled();
  EXPECT_EQ(in_child([&] {
              if (!recorder->arena().path().empty() && Recorder::create(same).has_value()) return 1;
              RecorderOptions other = same;
              other.arena.rank = 1;
              auto mine = Recorder::create(other);
              if (!mine) return 2;
              (*mine)->resume();
              RingReader reader((*mine)->arena());
              (*mine)->end((*mine)->begin(Kind::kDataLoading));
              return reader.take().size() == 1 ? 0 : 3;
            }),
            0);
  EXPECT_EQ(recorder->recorded_spans(), 0u);
}

}  // namespace
}  // namespace smon_rt
