// When kernels run: whom NCCL is asked of, in which steps, and what spans have of it.

#include <sys/wait.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <thread>
#include <vector>

#include "fakes/fake_libnccl.h"
#include "nccl_library.h"
#include "unit/format/collected_trace.h"

namespace smon_rt::testing {
namespace {

using nccl::EventState;
namespace fs = std::filesystem;

constexpr int kTried = 22907;
constexpr std::uint32_t kWarmupSteps = 2;

/// A libnccl of its own: a copy, so that there may be several of different versions.
class FakeNccl {
 public:
  explicit FakeNccl(int version) {
    static std::atomic<int> copies{0};
    path_ = fs::temp_directory_path() /
            ("libnccl-" + std::to_string(::getpid()) + "-" + std::to_string(copies.fetch_add(1)) + ".so");
    fs::copy_file(FAKE_LIBNCCL, path_, fs::copy_options::overwrite_existing);
    handle_ = ::dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle_ == nullptr) {
      ADD_FAILURE() << ::dlerror();
      return;
    }
    mask_ = static_cast<int*>(::dlsym(handle_, "fake_nccl_mask"));
    *static_cast<int*>(::dlsym(handle_, "fake_nccl_version")) = version;
  }
  ~FakeNccl() { fs::remove(path_); }
  FakeNccl(const FakeNccl&) = delete;
  FakeNccl& operator=(const FakeNccl&) = delete;

  int* mask() const { return mask_; }
  int now() const { return __atomic_load_n(mask_, __ATOMIC_RELAXED); }
  bool asks_kernels() const { return (now() & nccl::kKernelChEvent) != 0; }

 private:
  fs::path path_;
  void* handle_ = nullptr;
  int* mask_ = nullptr;
};

/// A recording that wants to know when kernels run; later recordings of the process find its communicators' connections
/// made, so each test has its own process.
template <typename Event>
class NcclKernels : public ::testing::Test {
 protected:
  using Host = Nccl<Event>;

  /// Runs a test in a child, since NCCL connects once a process.
  template <typename Test>
  static void in_a_process_of_its_own(Test&& test) {
    const pid_t child = ::fork();
    if (child == 0) {
      test();
      ::_exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
};

/// What such a test works with.
template <typename Event>
struct Job {
  explicit Job(std::int32_t nccl_detail = 1, const std::string& trace_dir = "") {
    smon_config config;
    library.find<decltype(smon_config_init)>("smon_config_init")(&config);
    run_id = "kernels-" + std::to_string(::getpid());
    config.run_id = run_id.c_str();
    config.trace_dir = trace_dir.c_str();
    config.rank = 0;
    config.sample_ratio = 0.1;
    config.warmup_steps = kWarmupSteps;
    config.always_steps = 4;
    config.nccl_detail = nccl_detail;
    EXPECT_EQ(library.find<decltype(smon_start)>("smon_start")(&config), SMON_OK);
  }
  void step(std::int64_t number) const { library.find<decltype(smon_step_begin)>("smon_step_begin")(number); }
  void end_step() const { library.find<decltype(smon_step_end)>("smon_step_end")(); }
  bool is_sampled() const { return library.find<decltype(smon_is_sampled)>("smon_is_sampled")() != 0; }
  void capture_begin() const { library.find<decltype(smon_capture_begin)>("smon_capture_begin")(); }
  void capture_end() const { library.find<decltype(smon_capture_end)>("smon_capture_end")(); }
  std::string refusal() const { return library.status().nccl_detail_refusal; }
  void op(void* context) const {
    void* call = nccl.call(context, nullptr);
    nccl.stop(nccl.coll(context, call));
    nccl.stop(call);
  }
  /// Past the warm-up, which NCCL connects in.
  void warm_up(void* context) const {
    for (std::uint32_t number = 0; number < kWarmupSteps; ++number) {
      step(number);
      op(context);
    }
    step(kWarmupSteps);
    ASSERT_TRUE(is_sampled());
  }

  Library library;
  Nccl<Event> nccl{library};
  std::string run_id;
};

using Versions = ::testing::Types<nccl::EventV4, nccl::EventV5, nccl::EventV6>;
TYPED_TEST_SUITE(NcclKernels, Versions);

TYPED_TEST(NcclKernels, AreAskedForInOneStepOfTheWarmUpThenInSampledSteps) {
  this->in_a_process_of_its_own([] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job;
    void* context = job.nccl.init(1, 1, libnccl.mask());
    EXPECT_FALSE(libnccl.asks_kernels()) << "no step has begun";
    job.step(0);
    EXPECT_TRUE(libnccl.asks_kernels()) << "the first op connects";
    job.op(context);
    job.step(1);
    EXPECT_EQ(libnccl.asks_kernels(), job.is_sampled()) << "it has";
    int sampled = 0;
    for (std::int64_t number = kWarmupSteps; number < 120; ++number) {
      job.step(number);
      EXPECT_EQ(libnccl.asks_kernels(), job.is_sampled()) << number;
      sampled += job.is_sampled() ? 1 : 0;
      job.end_step();
      EXPECT_FALSE(libnccl.asks_kernels()) << "between steps";
    }
    EXPECT_GT(sampled, 4);
    EXPECT_LT(sampled, 60);
    EXPECT_EQ(job.refusal(), "");
    job.library.stop();
    EXPECT_EQ(libnccl.now(), 0);
    job.nccl.finalize(context);
  });
}

TYPED_TEST(NcclKernels, AreNotAskedForUnlessTheJobWantsThem) {
  this->in_a_process_of_its_own([] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job(0);
    EXPECT_EQ(job.refusal().find("not asked for"), 0u) << job.refusal();
    void* context = job.nccl.init(1, 1, libnccl.mask());
    for (std::int64_t number = 0; number < 50; ++number) {
      job.step(number);
      EXPECT_FALSE(libnccl.asks_kernels());
      job.op(context);
    }
    EXPECT_EQ(job.library.status().nccl_kernel_ops, 0u);
    EXPECT_NE(job.refusal().find("nccl_detail"), std::string::npos) << job.refusal();
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclKernels, AreNotAskedForWhereTheWarmUpHadNoOperation) {
  this->in_a_process_of_its_own([] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job;
    for (std::uint32_t number = 0; number < kWarmupSteps; ++number) job.step(number);
    job.step(kWarmupSteps);
    void* context = job.nccl.init(1, 1, libnccl.mask());
    for (std::int64_t number = kWarmupSteps; number < 50; ++number) {
      job.step(number);
      EXPECT_FALSE(libnccl.asks_kernels()) << "connecting would fall into a step that counts";
      job.op(context);
    }
    EXPECT_NE(job.refusal().find("warm-up"), std::string::npos) << job.refusal();
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclKernels, AreNotAskedOfVersionsThatDoNotBearItOrThatNobodyHasTried) {
  this->in_a_process_of_its_own([] {
    const Job<TypeParam> job;
    const std::array<std::pair<int, const char*>, 7> refused = {{{22705, "#2039"},
                                                                 {22707, "#2039"},
                                                                 {22902, "#2353"},
                                                                 {23003, "#2112"},
                                                                 {23102, "#2355"},
                                                                 {23203, "2.32.3"},
                                                                 {0, "not known"}}};
    for (const auto& [version, why] : refused) {
      const FakeNccl libnccl(version);
      void* context = job.nccl.init(1, 1, libnccl.mask());
      job.step(0);
      EXPECT_NE(libnccl.now(), 0);
      EXPECT_FALSE(libnccl.asks_kernels()) << version;
      EXPECT_NE(job.refusal().find(why), std::string::npos) << job.refusal();
      job.op(context);
      EXPECT_EQ(job.library.status().nccl_kernel_ops, 0u) << "a span must not wait for what nobody will say";
      job.nccl.finalize(context);
    }
    job.library.stop();
  });
}

TYPED_TEST(NcclKernels, AreAskedOfThoseLibrariesThatBearIt) {
  this->in_a_process_of_its_own([] {
    const FakeNccl old(22707);
    const FakeNccl tried(kTried);
    void* before = nullptr;
    void* context = nullptr;
    {
      // Opened before anyone wanted it.
      const Job<TypeParam> first(0);
      before = first.nccl.init(1, 1, old.mask());
      context = first.nccl.init(2, 1, tried.mask());
      first.library.stop();
    }
    const Job<TypeParam> job;
    job.warm_up(context);
    EXPECT_TRUE(tried.asks_kernels());
    EXPECT_FALSE(old.asks_kernels());
    const std::uint64_t asked = job.library.status().nccl_kernel_ops;
    job.op(before);
    EXPECT_EQ(job.library.status().nccl_kernel_ops, asked);
    job.op(context);
    EXPECT_EQ(job.library.status().nccl_kernel_ops, asked + 1);
    EXPECT_EQ(job.refusal(), "");
    job.nccl.finalize(before);
    job.nccl.finalize(context);
    job.library.stop();
  });
}

TYPED_TEST(NcclKernels, AreNeverAskedForWhileAStreamIsCaptured) {
  this->in_a_process_of_its_own([] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job;
    void* context = job.nccl.init(1, 1, libnccl.mask());
    job.capture_begin();
    job.step(0);
    EXPECT_FALSE(libnccl.asks_kernels());
    job.capture_end();
    EXPECT_TRUE(libnccl.asks_kernels());
    job.warm_up(context);
    job.capture_begin();
    job.capture_begin();
    EXPECT_FALSE(libnccl.asks_kernels());
    job.op(context);
    job.capture_end();
    EXPECT_FALSE(libnccl.asks_kernels()) << "the other one goes on";
    job.step(3);
    EXPECT_FALSE(libnccl.asks_kernels());
    job.capture_end();
    job.capture_end();
    EXPECT_TRUE(libnccl.asks_kernels());
    job.capture_begin();
    EXPECT_FALSE(libnccl.asks_kernels()) << "an end too many counts for none";
    job.nccl.finalize(context);
    job.library.stop();
  });
}

/// Version 4 does not say what is captured.
template <typename Event>
class NcclKernelsAfterV4 : public NcclKernels<Event> {};
using VersionsAfterV4 = ::testing::Types<nccl::EventV5, nccl::EventV6>;
TYPED_TEST_SUITE(NcclKernelsAfterV4, VersionsAfterV4);

TYPED_TEST(NcclKernelsAfterV4, ACapturedOperationThatNobodySaidWouldComeEndsIt) {
  this->in_a_process_of_its_own([] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job;
    void* context = job.nccl.init(1, 1, libnccl.mask());
    job.warm_up(context);
    void* call = job.nccl.call(context, nullptr, true);
    EXPECT_FALSE(libnccl.asks_kernels());
    job.nccl.stop(call);
    job.step(3);
    EXPECT_FALSE(libnccl.asks_kernels());
    EXPECT_NE(job.refusal().find("captured"), std::string::npos) << job.refusal();
    job.nccl.finalize(context);
    job.library.stop();
  });
}

/// Tells of the kernels of an op on two channels, by a timer of its own.
template <typename Event>
void run_kernels(const Nccl<Event>& nccl, void* context, void* op, std::uint64_t start_ns, std::uint64_t stop_ns) {
  std::array<void*, 2> handles{};
  for (std::uint8_t channel = 0; channel < 2; ++channel) {
    Event event = Nccl<Event>::event_of(nccl::kKernelChEvent, op);
    event.kernelCh = {channel, start_ns + channel};
    handles[channel] = nccl.start(context, event);
  }
  for (std::size_t channel = 0; channel < 2; ++channel) {
    nccl::StateArgs args{};
    args.kernelCh.pTimer = stop_ns - channel;
    EXPECT_EQ(nccl.plugin().callbacks.recordEventState(handles[channel], EventState::kKernelChStop, &args),
              nccl::kSuccess);
    nccl.stop(handles[channel]);
  }
}

std::uint64_t host_ns() {
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
}

test::CollectedTrace read_trace(const fs::path& directory) {
  std::string bytes;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".smon") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    bytes.append(std::istreambuf_iterator<char>(file), {});
  }
  return test::collect(bytes);
}

/// Why a hook is not there, as the newest header says.
std::string reason_in(const test::CollectedTrace& trace, const std::string& hook) {
  if (trace.identities.empty()) return "there is no header";
  for (const TraceHook& found : trace.identities.back().hooks) {
    if (found.name == hook) return found.reason;
  }
  return "the header does not say";
}

TYPED_TEST(NcclKernels, TheHeaderSaysWhyTheyWereNotAskedFor) {
  const fs::path directory = fs::temp_directory_path() / ("smon-no-kernels-" + std::to_string(::getpid()));
  fs::create_directories(directory);
  this->in_a_process_of_its_own([&] {
    ::setenv("SMON_RT_NCCL_CHAIN", "/nowhere/libnccl-profiler.so", 1);
    const FakeNccl libnccl(22707);
    const Job<TypeParam> job(1, directory);
    void* context = job.nccl.init(1, 1, libnccl.mask());
    job.step(0);
    job.op(context);
    EXPECT_EQ(job.library.stop(), SMON_OK);
    job.nccl.finalize(context);
  });
  const test::CollectedTrace trace = read_trace(directory);
  fs::remove_all(directory);
  EXPECT_NE(reason_in(trace, "nccl.kernel_times").find("#2039"), std::string::npos);
  EXPECT_NE(reason_in(trace, "nccl.chain").find("/nowhere"), std::string::npos);
}

TYPED_TEST(NcclKernels, GiveSpansOfCommunicationTheirTimes) {
  constexpr std::uint64_t kOrigin = 1'700'000'000'000'000'000;  // the timer counts from another moment
  constexpr int kOps = 40;
  const fs::path directory = fs::temp_directory_path() / ("smon-kernels-" + std::to_string(::getpid()));
  fs::create_directories(directory);
  this->in_a_process_of_its_own([&] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job(1, directory);
    const std::int32_t members[] = {0, 1};
    smon_span_ids ids = SMON_NO_IDS;
    ids.comm_id = job.library.template find<decltype(smon_register_communicator)>("smon_register_communicator")(
        "dp", "dp", members, 2);
    auto* begin = job.library.template find<decltype(smon_begin)>("smon_begin");
    auto* end = job.library.template find<decltype(smon_end)>("smon_end");
    void* context = job.nccl.init(1, 1, libnccl.mask());
    job.warm_up(context);
    for (int i = 0; i < kOps; ++i) {
      // Two numberings that have the same number, and a host that is through before the GPU.
      const smon_token span = begin(i % 2 == 0 ? SMON_GRADS_REDUCE_SCATTER : SMON_PARAMS_ALL_GATHER, &ids);
      void* call = job.nccl.call(context, nullptr);
      void* op = job.nccl.coll(context, call, static_cast<std::uint64_t>(i));
      job.nccl.stop(op);
      job.nccl.stop(call);
      end(span);
      const std::uint64_t start_ns = kOrigin + host_ns();
      std::this_thread::sleep_for(std::chrono::microseconds(i % 2 == 0 ? 300 : 900));
      run_kernels(job.nccl, context, op, start_ns, kOrigin + host_ns());
    }
    const smon_token without = begin(SMON_COLLECTIVE, &ids);
    end(without);
    EXPECT_EQ(job.library.stop(), SMON_OK) << job.library.template find<decltype(smon_last_error)>("smon_last_error")();
    job.nccl.finalize(context);
  });
  const test::CollectedTrace trace = read_trace(directory);
  fs::remove_all(directory);
  int timed = 0;
  for (const Span& span : trace.all_spans()) {
    if (!is_communication(span.kind)) continue;
    if (span.kind == Kind::kCollective) {
      EXPECT_EQ(span.time_source, TimeSource::kHost);
      continue;
    }
    EXPECT_EQ(span.time_source, TimeSource::kNcclGlobaltimer);
    ++timed;
    const std::int64_t duration_ns = span.device_end - span.device_start;
    EXPECT_GE(duration_ns, span.kind == Kind::kGradsReduceScatter ? 299'000 : 899'000);
    // How near the clocks are is clock_map_test's matter; here a machine that has no time for us must not fail.
    EXPECT_GE(span.device_start, span.start - 1'000'000'000);
    EXPECT_GE(span.device_end, span.end) << "the host was through before";
  }
  EXPECT_EQ(timed, kOps);
  EXPECT_EQ(reason_in(trace, "nccl.kernel_times"), "") << "asked, says the header";
  ASSERT_FALSE(trace.clock_maps.empty());
  EXPECT_EQ(trace.clock_maps[0].device_clock, "globaltimer");
}

TYPED_TEST(NcclKernels, MasksFollowStepsAndCapturesOfSeveralThreads) {
  this->in_a_process_of_its_own([] {
    const FakeNccl libnccl(kTried);
    const Job<TypeParam> job;
    void* first = job.nccl.init(1, 2, libnccl.mask());
    job.warm_up(first);
    std::atomic<bool> must_stop{false};
    std::vector<std::thread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        void* context = job.nccl.init(static_cast<std::uint64_t>(i) + 10, 2, libnccl.mask());
        std::uint64_t timer = 1000;
        while (!must_stop) {
          void* call = job.nccl.call(context, nullptr);
          void* op = job.nccl.coll(context, call);
          job.nccl.stop(op);
          job.nccl.stop(call);
          run_kernels(job.nccl, context, op, timer, timer + 500);
          timer += 1000;
        }
        job.nccl.finalize(context);
      });
    }
    threads.emplace_back([&] {
      while (!must_stop) {
        job.capture_begin();
        EXPECT_FALSE(libnccl.asks_kernels()) << "whatever the others do meanwhile";
        job.capture_end();
        std::this_thread::yield();
      }
    });
    for (std::int64_t number = 10; number < 2010; ++number) job.step(number);
    must_stop = true;
    for (std::thread& thread : threads) thread.join();
    job.step(3000);
    EXPECT_EQ(libnccl.asks_kernels(), job.is_sampled());
    EXPECT_EQ(job.library.status().nccl_rejected_times, 0u);
    job.nccl.finalize(first);
    job.library.stop();
  });
}

}  // namespace
}  // namespace smon_rt::testing
