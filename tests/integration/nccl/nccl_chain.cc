// Another plug-in of the job's behind ours: both hear what they asked for, and neither notices the other.

#include <sys/wait.h>

#include <array>
#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <thread>
#include <vector>

#include "fakes/fake_nccl_plugin.h"
#include "nccl_library.h"

namespace smon_rt::testing {
namespace {

using nccl::EventState;

constexpr int kOurs = nccl::kCollApiEvent | nccl::kP2pApiEvent | nccl::kCollEvent | nccl::kP2pEvent;
constexpr int kTheirs = nccl::kGroupEvent | nccl::kCollEvent | nccl::kProxyOpEvent | nccl::kProxyStepEvent |
                        nccl::kKernelChEvent | nccl::kGroupApiEvent | nccl::kCollApiEvent;

/// The library takes the name of a plug-in once a process: each test has its own.
template <typename Event>
class NcclChain : public ::testing::Test {
 protected:
  static void with_plugin(const char* path, const std::function<void()>& test) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::setenv("SMON_RT_NCCL_CHAIN", path, 1);
      test();
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
};

FakeNcclPlugin& plugin_in(const char* path) {
  auto* found = static_cast<FakeNcclPlugin*>(::dlsym(::dlopen(path, RTLD_NOW | RTLD_LOCAL), "fake_nccl_plugin"));
  EXPECT_NE(found, nullptr);
  return *found;
}

template <typename Event>
struct Job {
  explicit Job(bool starts = true) {
    if (starts) start();
  }
  void start() const { EXPECT_EQ(library.start("chain-" + std::to_string(::getpid())), SMON_OK); }
  static int known(int bits) { return Event::kVersion == 4 ? bits & 0xff : bits; }

  /// All that a plug-in hears of an op over the network, by NCCL's mask.
  void op(void* context, int mask, std::int32_t pid = ::getpid()) const {
    const auto if_asked = [&](int type, auto&& begin) { return (mask & type) != 0 ? begin() : nullptr; };
    void* group = if_asked(nccl::kGroupApiEvent, [&] { return nccl.call_group(context); });
    void* call = if_asked(nccl::kCollApiEvent, [&] { return nccl.call(context, group); });
    void* op = if_asked(nccl::kCollEvent, [&] {
      Event event = Nccl<Event>::event_of(nccl::kCollEvent, call);
      event.coll.func = "AllReduce";
      if constexpr (Event::kVersion > 4) event.coll.parentGroup = group;
      return nccl.start(context, event);
    });
    nccl.stop(op);
    nccl.stop(call);
    nccl.stop(group);
    void* kernel = if_asked(nccl::kKernelChEvent, [&] {
      Event event = Nccl<Event>::event_of(nccl::kKernelChEvent, op);
      event.kernelCh = {0, 1000};
      return nccl.start(context, event);
    });
    void* sub = if_asked(nccl::kProxyOpEvent, [&] { return nccl.proxy_op(context, op, 0, true, pid); });
    void* step = if_asked(nccl::kProxyStepEvent, [&] { return nccl.proxy_step(context, sub, 0); });
    nccl.record(step, EventState::kStepSendWait, 10);
    nccl.stop(step);
    nccl.stop(sub);
    nccl.record(kernel, EventState::kKernelChStop);
    nccl.stop(kernel);
  }

  Library library;
  Nccl<Event> nccl{library};
};

void expect_no_confusion(const FakeNcclPlugin& theirs) {
  EXPECT_EQ(theirs.unasked, 0u);
  EXPECT_EQ(theirs.orphans, 0u);
  EXPECT_EQ(theirs.foreign, 0u);
}

using Versions = ::testing::Types<nccl::EventV4, nccl::EventV5, nccl::EventV6>;
TYPED_TEST_SUITE(NcclChain, Versions);

TYPED_TEST(NcclChain, BothHearWhatTheyAskedForAndOnlyThat) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = Job<TypeParam>::known(kTheirs);
    const Job<TypeParam> job;
    int mask = -1;
    void* context = job.nccl.init(1, 2, &mask);
    EXPECT_EQ(mask, Job<TypeParam>::known(kOurs | kTheirs));
    constexpr std::uint64_t kOps = 1000;
    for (std::uint64_t i = 0; i < kOps; ++i) job.op(context, mask);
    const std::uint64_t types = TypeParam::kVersion == 4 ? 4 : 6;
    EXPECT_EQ(theirs.starts, kOps * types);
    EXPECT_EQ(theirs.stops, kOps * types);
    EXPECT_EQ(theirs.records, kOps * 2);
    expect_no_confusion(theirs);
    const smon_status status = job.library.status();
    EXPECT_EQ(status.nccl_ops, kOps);
    EXPECT_EQ(status.nccl_foreign_handles, 0u);
    EXPECT_EQ(status.nccl_stale_handles, 0u);
    EXPECT_EQ(status.nccl_rejected_times, 0u) << "kernels are not ours to hear of";
    job.nccl.finalize(context);
    job.nccl.finalize(context);
    EXPECT_EQ(theirs.finalizes, 1u);
    expect_no_confusion(theirs);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, TheirsGoesOnWhileNothingIsRecorded) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = nccl::kCollEvent;
    const Job<TypeParam> job(false);
    int mask = -1;
    void* context = job.nccl.init(1, 2, &mask);
    EXPECT_EQ(mask, theirs.mask) << "nothing of ours";
    job.op(context, mask);
    EXPECT_EQ(theirs.starts, 1u);
    job.start();
    EXPECT_EQ(mask & Job<TypeParam>::known(kOurs), Job<TypeParam>::known(kOurs));
    job.op(context, mask);
    EXPECT_EQ(job.library.status().nccl_ops, 1u);
    job.library.stop();
    EXPECT_EQ(mask, theirs.mask);
    job.op(context, mask);
    EXPECT_EQ(theirs.starts, 3u);
    EXPECT_EQ(theirs.stops, 3u);
    job.nccl.finalize(context);
    expect_no_confusion(theirs);
  });
}

TYPED_TEST(NcclChain, WhereTheirsFailsOursGoesOn) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = Job<TypeParam>::known(kTheirs);
    const Job<TypeParam> job;
    int mask = -1;
    void* first = job.nccl.init(1, 2, &mask);
    theirs.must_fail = true;
    int other_mask = -1;
    void* second = job.nccl.init(2, 2, &other_mask);
    EXPECT_NE(second, nullptr);
    EXPECT_EQ(other_mask & nccl::kGroupEvent, 0) << "not for them";
    void* third = job.nccl.init(3, 2, &mask);
    EXPECT_EQ(mask & theirs.mask, theirs.mask) << "the first one of this library goes on";
    for (int i = 0; i < 10; ++i) {
      job.op(first, mask);
      job.op(second, other_mask);
    }
    EXPECT_EQ(job.library.status().nccl_ops, 20u);
    EXPECT_EQ(job.library.status().nccl_foreign_handles, 0u);
    EXPECT_EQ(theirs.stops, 0u) << "what did not begin";
    job.nccl.finalize(first);
    job.nccl.finalize(second);
    job.nccl.finalize(third);
    EXPECT_EQ(theirs.finalizes, 1u) << "those of the others were never opened";
    EXPECT_EQ(theirs.foreign, 0u);
    EXPECT_EQ(theirs.unasked, 0u);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, WhereOursHasNoRoomTheirsGoesOn) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = Job<TypeParam>::known(kTheirs);
    const Job<TypeParam> job;
    int mask = -1;
    std::vector<void*> contexts;
    for (std::uint64_t i = 0; i < 300; ++i) contexts.push_back(job.nccl.init(i, 2, &mask));
    EXPECT_GE(job.library.status().nccl_untracked, 44u);
    EXPECT_EQ(mask & theirs.mask, theirs.mask);
    const std::uint64_t before = theirs.starts;
    job.op(contexts.back(), mask);
    EXPECT_EQ(theirs.starts - before, TypeParam::kVersion == 4 ? 4u : 6u);
    for (void* context : contexts) job.nccl.finalize(context);
    EXPECT_EQ(theirs.finalizes, 300u);
    expect_no_confusion(theirs);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, WhatTheyAskForLaterIsAskedForOnceNcclCalls) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    const Job<TypeParam> job;
    int mask = -1;
    void* context = job.nccl.init(1, 1, &mask);
    EXPECT_EQ(mask, Job<TypeParam>::known(kOurs));
    theirs.mask = nccl::kCollEvent | nccl::kGroupEvent;
    __atomic_store_n(theirs.asked_by_init, theirs.mask, __ATOMIC_RELAXED);
    job.op(context, mask);
    EXPECT_EQ(mask, Job<TypeParam>::known(kOurs | theirs.mask));
    expect_no_confusion(theirs);
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, OnlyTheSameVersionIsCalled) {
  this->with_plugin(FAKE_OLD_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_OLD_NCCL_PLUGIN);
    theirs.mask = nccl::kCollEvent;
    const Job<TypeParam> job;
    int mask = -1;
    void* context = job.nccl.init(1, 1, &mask);
    job.op(context, mask);
    EXPECT_EQ(theirs.inits, TypeParam::kVersion == 4 ? 1u : 0u);
    EXPECT_EQ(job.library.status().nccl_ops, 1u);
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, ALibraryThatIsNotThereOrIsOursIsNoHarm) {
  for (const char* path : {"/nowhere/libnccl-profiler.so", "no-such-word", SMON_RT_LIBRARY, "libm.so.6"}) {
    this->with_plugin(path, [] {
      const Job<TypeParam> job;
      int mask = -1;
      void* context = job.nccl.init(1, 1, &mask);
      EXPECT_EQ(mask, Job<TypeParam>::known(kOurs));
      job.op(context, mask);
      EXPECT_EQ(job.library.status().nccl_ops, 1u);
      job.nccl.finalize(context);
      job.library.stop();
    });
  }
}

TYPED_TEST(NcclChain, GarbageOfOthersReachesNobody) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = Job<TypeParam>::known(kTheirs);
    const Job<TypeParam> job;
    int mask = -1;
    void* context = job.nccl.init(1, 2, &mask);
    // Of a chain of another process: another nonce, the same types and indices.
    const auto number = reinterpret_cast<std::uintptr_t>(context);
    for (std::uintptr_t type = 0; type < 16; ++type) {
      auto* foreign = reinterpret_cast<void*>(((number ^ 0x5a5a'0000'0000'0000) & ~0xf000'0000'0000ULL) | type << 44);
      job.nccl.stop(foreign);
      job.nccl.record(foreign, EventState::kStepSendWait);
      job.nccl.finalize(foreign);
      EXPECT_EQ(job.nccl.coll(foreign, foreign), nullptr);
    }
    EXPECT_EQ(theirs.starts + theirs.stops + theirs.records + theirs.finalizes, 0u);
    // With PXN the op is another process's, and so is what it is called there.
    job.nccl.stop(job.nccl.proxy_op(context, &mask, 0, true, ::getpid() + 1));
    EXPECT_EQ(theirs.foreign_pid, 1u) << "as without us";
    expect_no_confusion(theirs);
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, MoreThanThereIsRoomForIsForgottenOldestFirst) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = nccl::kCollEvent;
    const Job<TypeParam> job;
    int mask = -1;
    void* context = job.nccl.init(1, 1, &mask);
    std::vector<void*> ops;
    constexpr std::size_t kMoreThanThereAre = 20'000;
    for (std::size_t i = 0; i < kMoreThanThereAre; ++i) ops.push_back(job.nccl.coll(context, nullptr));
    for (void* op : ops) job.nccl.stop(op);
    EXPECT_EQ(theirs.starts, kMoreThanThereAre);
    EXPECT_EQ(theirs.stops, 16'384u);
    expect_no_confusion(theirs);
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclChain, SeveralThreadsWithStepsAndRestartsConfuseNothing) {
  this->with_plugin(FAKE_NCCL_PLUGIN, [] {
    FakeNcclPlugin& theirs = plugin_in(FAKE_NCCL_PLUGIN);
    theirs.mask = Job<TypeParam>::known(kTheirs);
    const Job<TypeParam> job;
    std::array<int, 3> masks{};
    // A thread that loses the processor must not fall thousands of ops behind: no thread of a job can.
    std::barrier together(static_cast<std::ptrdiff_t>(masks.size()));
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < masks.size(); ++i) {
      threads.emplace_back([&, i] {
        for (int round = 0; round < 100; ++round) {
          void* context = job.nccl.init(i, 2, &masks[i]);
          for (int k = 0; k < 100; ++k) job.op(context, Job<TypeParam>::known(kOurs | kTheirs));
          job.nccl.finalize(context);
          together.arrive_and_wait();
        }
      });
    }
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(job.library.stop(), SMON_OK);
      job.start();
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(theirs.inits, theirs.finalizes);
    EXPECT_EQ(theirs.starts, theirs.stops);
    expect_no_confusion(theirs);
    EXPECT_EQ(job.library.status().nccl_foreign_handles, 0u);
    job.library.stop();
  });
}

}  // namespace
}  // namespace smon_rt::testing
