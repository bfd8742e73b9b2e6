// The table of operations under way, by threads that have no GIL, beside one that has it.
#include "bindings/collective_table.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "api/smon_rt.h"
#include "bindings/transfer_labels.h"

namespace smon_rt::bindings {
namespace {

std::atomic<int> g_let_go{0};

void let_go(PyObject*) {
  g_let_go.fetch_add(1);
}

/// An address that no reference is read at.
PyObject* reference(std::uintptr_t number) {
  return reinterpret_cast<PyObject*>(16 * number);
}

class CollectiveTable : public testing::Test {
 protected:
  void SetUp() override {
    set_up_table(&let_go);
    g_let_go = 0;
    const std::string run_id = "collective_table_" + std::to_string(::getpid());
    folder_ = testing::TempDir() + run_id;
    smon_config config;
    smon_config_init(&config);
    config.trace_dir = folder_.c_str();
    config.run_id = run_id.c_str();
    config.sample_ratio = 0.0;
    config.warmup_steps = 0;
    config.always_steps = 0;
    ASSERT_EQ(smon_start(&config), SMON_OK) << smon_last_error();
    smon_step_begin(0);
  }

  void TearDown() override {
    end_all_operations();
    EXPECT_FALSE(has_awaited());
    EXPECT_FALSE(has_issued());
    EXPECT_FALSE(has_addresses());
    smon_stop();
    std::filesystem::remove_all(folder_);
  }

  static Begun begin() {
    Begun begun;
    begun.is_unsampled = true;
    const smon_span_ids ids = SMON_NO_IDS;
    begun.token = begin_operation(SMON_FORWARD_SEND, ids);
    return begun;
  }

 private:
  std::string folder_;
};

TEST_F(CollectiveTable, OperationIsTakenOnceByItsKey) {
  const Begun begun = begin();
  ASSERT_NE(begun.token, 0U);
  EXPECT_EQ(smon_current(), begun.token);
  await_without_python(17, begun);
  EXPECT_EQ(take_awaited(18, 17), begun.token);
  EXPECT_EQ(take_awaited(18, 17), 0U);
  end_operation(begun.token, SMON_TIME_WAIT_RETURN, 0);
  EXPECT_EQ(smon_current(), 0U);
}

TEST_F(CollectiveTable, AnOperationWhoseWorkIsGoneIsNotTakenForAnotherOne) {
  const Begun begun = begin();
  await_without_python(17, begun);
  forget_awaited(18);
  EXPECT_TRUE(has_awaited());
  forget_awaited(17);
  EXPECT_EQ(take_awaited(17), 0U);
  EXPECT_EQ(smon_current(), 0U) << "it has ended where it had been issued";
  await(17, begin(), reference(1));
  forget_awaited(17);
  EXPECT_EQ(g_let_go, 0) << "by who has the GIL";
  end_unwaited();
  EXPECT_EQ(g_let_go, 1);
}

TEST_F(CollectiveTable, ALabelWithoutAPayloadIsLeftToWhoReadsThat) {
  Label label{};
  expect_transfer(16, 32, true, {SMON_FORWARD_SEND, 1, 0});
  expect_transfer(0, 48, true, {SMON_FORWARD_SEND, 2, 0, 400});
  EXPECT_FALSE(take_whole_transfer_of(32, true, label));
  EXPECT_FALSE(take_whole_transfer_of(48, false, label));
  ASSERT_TRUE(take_whole_transfer_of(48, true, label));
  EXPECT_EQ(label.payload_bytes, 400);
  EXPECT_FALSE(take_transfer(0, true, label)) << "0 is no place";
  EXPECT_TRUE(are_identities_enough());
  ASSERT_TRUE(take_transfer(16, true, label));
  EXPECT_EQ(label.microbatch, 1);
  EXPECT_FALSE(take_transfer_of(32, true, label));
  EXPECT_FALSE(are_identities_enough());
}

TEST_F(CollectiveTable, ReferencesThatAThreadWithoutTheGilDisplacesAreLetGoOfLater) {
  constexpr int kMost = 4096;  // that the table holds
  for (int i = 1; i <= kMost; ++i) await(2U * static_cast<unsigned>(i), Begun{}, reference(1));
  await_without_python(1, Begun{});
  EXPECT_EQ(g_let_go, 0);
  end_unwaited();
  EXPECT_EQ(g_let_go, 1);
  end_all_operations();
  EXPECT_EQ(g_let_go, kMost);
}

TEST_F(CollectiveTable, ThreadsWithoutTheGilAndOneWithItMeetAtNothing) {
  constexpr int kThreads = 4, kOperations = 3000;
  std::atomic<int> threads_left{kThreads}, taken{0}, own_labels{0};
  const auto issue = [&](std::uintptr_t number) {
    for (int i = 0; i < kOperations; ++i) {
      const std::uintptr_t place = 2 * (number * kOperations + static_cast<unsigned>(i)) + 1;
      expect_transfer(place, place, true, {SMON_FORWARD_SEND, static_cast<std::int16_t>(number), 0});
      Label label{};
      if (take_transfer_of(place, true, label) && label.microbatch == static_cast<int>(number)) ++own_labels;
      const Begun begun = begin();
      if (i % 2 == 0) {
        keep_issued(&threads_left, static_cast<std::int64_t>(place), begun);
        take_issued(&threads_left, static_cast<std::int64_t>(place));
      }
      await_without_python(place, begun);
      const smon_token token = take_awaited(place);
      if (token != 0 && token == begun.token) ++taken;
      if (token != 0) end_operation(token, SMON_TIME_WAIT_RETURN, 0);
    }
    --threads_left;
  };
  std::vector<std::thread> threads;
  for (std::uintptr_t number = 0; number < kThreads; ++number) threads.emplace_back(issue, number);
  int references = 0;
  while (threads_left != 0) {
    await(make_key(), Begun{}, reference(1));
    ++references;
    leave_reference(reference(1));
    ++references;
    take_awaited_at(7);
    end_dropped(reference(2));
    end_reductions();
    end_unwaited();
    Label label{};
    take_transfer(2, true, label);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(own_labels, kThreads * kOperations);
  // One that two steps have passed over has ended; there are few of these, if any.
  EXPECT_GT(taken, 0);
  end_all_operations();
  EXPECT_EQ(g_let_go, references);
}

}  // namespace
}  // namespace smon_rt::bindings
