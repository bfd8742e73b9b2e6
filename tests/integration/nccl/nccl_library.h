#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "api/smon_rt.h"
#include "cuda/nccl_profiler_types.h"
#include "format/arena_view.h"
#include "tests/integration/file_bytes.h"

namespace smon_rt::testing {

/// libsmon_rt.so, loaded as NCCL and as Python load it.
class Library {
 public:
  explicit Library(const std::string& path = SMON_RT_LIBRARY) : handle_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) ADD_FAILURE() << ::dlerror();
  }

  template <typename Function>
  Function* find(const char* name) const {
    auto* found = reinterpret_cast<Function*>(::dlsym(handle_, name));
    if (found == nullptr) ADD_FAILURE() << name << " is not exported";
    return found;
  }
  void close() { ::dlclose(handle_); }

  smon_result start(const std::string& run_id, std::int32_t rank = 0, const std::string& trace_dir = "") const {
    smon_config config;
    find<decltype(smon_config_init)>("smon_config_init")(&config);
    config.run_id = run_id.c_str();
    config.rank = rank;
    config.trace_dir = trace_dir.c_str();
    config.sample_ratio = 1;
    return find<decltype(smon_start)>("smon_start")(&config);
  }
  smon_result stop() const { return find<decltype(smon_stop)>("smon_stop")(); }
  smon_status status() const {
    smon_status status = {};
    status.struct_size = sizeof(status);
    find<decltype(smon_status_read)>("smon_status_read")(&status);
    return status;
  }

 private:
  void* handle_;
};

/// What NCCL does with a plug-in of one version. Every callback must succeed.
template <typename Event>
class Nccl {
 public:
  static constexpr int kVersion = Event::kVersion;
  using Plugin = std::conditional_t<kVersion == 4, nccl::PluginV4, nccl::PluginAfterV4<Event>>;

  explicit Nccl(const Library& library)
      : plugin_(*library.find<const Plugin>(("ncclProfiler_v" + std::to_string(kVersion)).c_str())) {}

  void* init(std::uint64_t comm_hash, int node_count, int* mask) const {
    void* context = nullptr;
    nccl::Status status;
    if constexpr (kVersion == 4) {
      status = plugin_.init(&context, mask, "name", comm_hash, node_count, 2 * node_count, 0, nullptr);
    } else {
      status = plugin_.init(&context, comm_hash, mask, "name", node_count, 2 * node_count, 0, nullptr);
    }
    EXPECT_EQ(status, nccl::kSuccess);
    return context;
  }
  void* start(void* context, Event event) const {
    void* handle = &event;  // what was there before
    EXPECT_EQ(plugin_.callbacks.startEvent(context, &handle, &event), nccl::kSuccess);
    return handle;
  }
  void stop(void* handle) const { EXPECT_EQ(plugin_.callbacks.stopEvent(handle), nccl::kSuccess); }
  void record(void* handle, nccl::EventState state, std::size_t bytes = 0) const {
    nccl::StateArgs args{};
    args.proxyStep.transSize = bytes;
    EXPECT_EQ(plugin_.callbacks.recordEventState(handle, state, &args), nccl::kSuccess);
  }
  void finalize(void* context) const { EXPECT_EQ(plugin_.callbacks.finalize(context), nccl::kSuccess); }

  static Event event_of(std::uint32_t type, void* parent = nullptr) {
    Event event = {};
    event.type = static_cast<decltype(event.type)>(type);
    event.parentObj = parent;
    return event;
  }
  void* group(void* context) const { return start(context, event_of(nccl::kGroupEvent)); }
  /// A call of the job; version 4 does not say.
  void* call(void* context, void* group, bool is_captured = false) const {
    if constexpr (kVersion == 4) {
      return nullptr;
    } else {
      Event event = event_of(nccl::kCollApiEvent, group);
      event.collApi = {"AllReduce", 1024, "ncclFloat32", 0, nullptr, is_captured};
      return start(context, event);
    }
  }
  void* call_group(void* context) const {
    return kVersion == 4 ? nullptr : start(context, event_of(nccl::kGroupApiEvent));
  }
  void* coll(void* context, void* call, std::uint64_t seq = 0) const {
    Event event = event_of(nccl::kCollEvent, call);
    event.coll.seqNumber = seq;
    event.coll.func = "AllReduce";
    event.coll.count = 1024;
    event.coll.datatype = "ncclFloat32";
    event.coll.nChannels = 2;
    event.coll.algo = "RING";
    event.coll.proto = "SIMPLE";
    return start(context, event);
  }
  void* p2p(void* context, void* call) const {
    Event event = event_of(nccl::kP2pEvent, call);
    event.p2p.func = "Send";
    event.p2p.count = 1024;
    event.p2p.datatype = "ncclBfloat16";
    event.p2p.peer = 1;
    return start(context, event);
  }
  void* proxy_op(void* context, void* op, int channel, bool is_send, std::int32_t pid = ::getpid()) const {
    Event event = event_of(nccl::kProxyOpEvent, op);
    event.proxyOp = {pid, static_cast<std::uint8_t>(channel), 1, 4, 4096, is_send ? 1 : 0};
    return start(context, event);
  }
  void* proxy_step(void* context, void* proxy_op, int step) const {
    Event event = event_of(nccl::kProxyStepEvent, proxy_op);
    event.proxyStep.step = step;
    return start(context, event);
  }
  /// A whole transfer of so many steps, as the proxy thread tells of it.
  void transfer(void* context, void* op, int channel, bool is_send, int steps, std::size_t bytes) const {
    using nccl::EventState;
    void* sub = proxy_op(context, op, channel, is_send);
    record(sub, EventState::kProxyOpInProgress);
    for (int i = 0; i < steps; ++i) {
      void* step = proxy_step(context, sub, i);
      if (is_send) {
        for (const auto state : {EventState::kStepSendGpuWait, EventState::kStepSendPeerWait}) record(step, state);
        record(step, EventState::kStepSendWait, bytes);
      } else {
        record(step, EventState::kStepRecvWait);
        record(step, EventState::kStepRecvFlushWait, bytes);
        record(step, EventState::kStepRecvGpuWait, bytes);
      }
      stop(step);
    }
    stop(sub);
  }

  const Plugin& plugin() const { return plugin_; }

 private:
  const Plugin& plugin_;
};

/// A recording of its own, without a file, whose memory is read as another process would.
class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    run_id_ =
        "nccl-" + std::to_string(::getpid()) + "-" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    ASSERT_EQ(library_.start(run_id_), SMON_OK);
    before_ = library_.status();
  }
  void TearDown() override { library_.stop(); }

  ArenaContents arena() const {
    const std::string name = "/dev/shm/smon-" + std::to_string(::getuid()) + "-" + run_id_ + "-0-0";
    const std::vector<std::byte> bytes = read_file_bytes(name);
    auto read = read_arena(bytes);
    if (!read) ADD_FAILURE() << name << ": " << read.error().message;
    return read ? *read : ArenaContents{};
  }
  std::optional<ArenaChannel> channel(std::uint64_t nccl_comm, std::uint32_t number, bool is_send) const {
    for (const ArenaChannel& found : arena().channels) {
      if (found.nccl_comm == nccl_comm && found.channel == number && found.is_send == is_send) return found;
    }
    return std::nullopt;
  }
  /// Since this test began: the library stays loaded.
  std::uint64_t grown(std::uint64_t smon_status::* field) const { return library_.status().*field - before_.*field; }

  Library library_;
  std::string run_id_;
  smon_status before_ = {};
};

}  // namespace smon_rt::testing
