#pragma once

#include <cstddef>
#include <cstdint>

// What NCCL and a profiler plug-in hand each other, versions 4 to 6 of that interface, as NCCL's documentation of
// profiler plug-ins describes it. Declared by hand, so that neither NCCL nor its headers are needed to build; the
// layout is fixed by the assertions at the end. NCCL tries the newest version first: 4 is from 2.27.3 on, 5
// from 2.28.3, 6 from 2.29.2.

namespace smon_rt::nccl {

using Status = int;
inline constexpr Status kSuccess = 0;

/// What is begun and ended, and the bit in the mask by which a plug-in asks for it.
enum EventBit : std::uint32_t {
  kGroupEvent = 1 << 0,
  kCollEvent = 1 << 1,
  kP2pEvent = 1 << 2,
  kProxyOpEvent = 1 << 3,
  kProxyStepEvent = 1 << 4,
  kProxyCtrlEvent = 1 << 5,
  kKernelChEvent = 1 << 6,
  kNetPluginEvent = 1 << 7,
  kGroupApiEvent = 1 << 8,  // from here on since version 5
  kCollApiEvent = 1 << 9,
  kP2pApiEvent = 1 << 10,
  kKernelLaunchEvent = 1 << 11,
  kCeCollEvent = 1 << 12,  // from here on since version 6
  kCeSyncEvent = 1 << 13,
  kCeBatchEvent = 1 << 14,
};

/// What an event that has begun is doing. 0 to 7 are of earlier versions.
enum class EventState : std::int32_t {
  kStepSendGpuWait = 8,
  kStepSendWait = 9,
  kStepRecvWait = 10,
  kStepRecvFlushWait = 11,
  kStepRecvGpuWait = 12,
  kProxyOpInProgress = 19,
  kStepSendPeerWait = 20,
  kNetPluginUpdate = 21,
  kKernelChStop = 22,
  kGroupStartApiStop = 23,
  kGroupEndApiStart = 24,
};

// Below, what the parts of an event say, named as the parts of NCCL's own descriptor, so that one template reads all
// three versions.

struct GroupApi {
  bool graphCaptured;
  std::int32_t groupDepth;
};

struct CollApi {
  const char* func;
  std::size_t count;
  const char* datatype;
  std::int32_t root;
  void* stream;
  bool graphCaptured;
};

struct P2pApi {
  const char* func;
  std::size_t count;
  const char* datatype;
  void* stream;
  bool graphCaptured;
};

struct KernelLaunch {
  void* stream;
};

struct CollV4 {
  std::uint64_t seqNumber;  // per communicator and function
  const char* func;
  const void* sendBuff;
  void* recvBuff;
  std::size_t count;  // elements
  std::int32_t root;
  const char* datatype;
  std::uint8_t nChannels;
  std::uint8_t nWarps;
  const char* algo;
  const char* proto;
};

struct CollV5 {
  std::uint64_t seqNumber;
  const char* func;
  const void* sendBuff;
  void* recvBuff;
  std::size_t count;
  std::int32_t root;
  const char* datatype;
  std::uint8_t nChannels;
  std::uint8_t nWarps;
  const char* algo;
  const char* proto;
  void* parentGroup;
};

struct P2pV4 {
  const char* func;
  void* buff;
  const char* datatype;
  std::size_t count;
  std::int32_t peer;
  std::uint8_t nChannels;
};

struct P2pV5 {
  const char* func;
  void* buff;
  const char* datatype;
  std::size_t count;
  std::int32_t peer;
  std::uint8_t nChannels;
  void* parentGroup;
};

struct ProxyOp {
  std::int32_t pid;  // of the process that the operation is from, which with PXN is another one
  std::uint8_t channelId;
  std::int32_t peer;
  std::int32_t nSteps;
  std::int32_t chunkSize;
  std::int32_t isSend;
};

struct ProxyStep {
  std::int32_t step;
};

struct KernelCh {
  std::uint8_t channelId;
  std::uint64_t pTimer;  // the GPU's global timer
};

struct NetPlugin {
  std::int64_t id;
  void* data;
};

/// The largest of what version 6 adds, which keeps the size of the whole; never read.
struct CeColl {
  std::uint64_t seqNumber;
  const char* func;
  const void* sendBuff;
  void* recvBuff;
  std::size_t count;
  std::int32_t root;
  const char* datatype;
  const char* syncStrategy;
  bool intraBatchSync;
  std::uint32_t batchSize;
  std::uint32_t numBatches;
  std::uint32_t ceSeqNum;
  void* stream;
};

struct EventV4 {
  static constexpr int kVersion = 4;
  std::uint8_t type;  // an EventBit
  void* parentObj;    // a handle that startEvent gave, perhaps in another process
  std::int32_t rank;
  union {
    CollV4 coll;
    P2pV4 p2p;
    ProxyOp proxyOp;
    ProxyStep proxyStep;
    KernelCh kernelCh;
    NetPlugin netPlugin;
  };
};

struct EventV5 {
  static constexpr int kVersion = 5;
  std::uint64_t type;
  void* parentObj;
  std::int32_t rank;
  union {
    GroupApi groupApi;
    CollApi collApi;
    P2pApi p2pApi;
    KernelLaunch kernelLaunch;
    CollV5 coll;
    P2pV5 p2p;
    ProxyOp proxyOp;
    ProxyStep proxyStep;
    KernelCh kernelCh;
    NetPlugin netPlugin;
  };
};

struct EventV6 {
  static constexpr int kVersion = 6;
  std::uint64_t type;
  void* parentObj;
  std::int32_t rank;
  union {
    GroupApi groupApi;
    CollApi collApi;
    P2pApi p2pApi;
    KernelLaunch kernelLaunch;
    CollV5 coll;
    P2pV5 p2p;
    ProxyOp proxyOp;
    ProxyStep proxyStep;
    KernelCh kernelCh;
    NetPlugin netPlugin;
    CeColl ceColl;
  };
};

/// What comes with a state, the same in all three versions.
union StateArgs {
  struct {
    std::size_t transSize;  // bytes
  } proxyStep;
  struct {
    std::int32_t appendedProxyOps;
  } proxyCtrl;
  struct {
    void* data;
  } netPlugin;
  struct {
    std::uint64_t pTimer;
  } kernelCh;
};

using Logger = void (*)();  // never called

template <typename Event>
struct CallbacksAfterInit {
  Status (*startEvent)(void* context, void** handle, Event* event);
  Status (*stopEvent)(void* handle);
  Status (*recordEventState)(void* handle, EventState state, StateArgs* args);
  Status (*finalize)(void* context);
};

/// The symbol ncclProfiler_v4.
struct PluginV4 {
  const char* name;
  Status (*init)(void** context, int* mask, const char* comm_name, std::uint64_t comm_hash, int node_count,
                 int rank_count, int rank, Logger logger);
  CallbacksAfterInit<EventV4> callbacks;
};

/// ncclProfiler_v5 and v6, whose init has its arguments in another order.
template <typename Event>
struct PluginAfterV4 {
  const char* name;
  Status (*init)(void** context, std::uint64_t comm_id, int* mask, const char* comm_name, int node_count,
                 int rank_count, int rank, Logger logger);
  CallbacksAfterInit<Event> callbacks;
};
using PluginV5 = PluginAfterV4<EventV5>;
using PluginV6 = PluginAfterV4<EventV6>;

// Where each field lies that is read, on the 64-bit platforms that NCCL is for.
static_assert(sizeof(void*) == 8);
static_assert(sizeof(GroupApi) == 8 && offsetof(GroupApi, groupDepth) == 4);
static_assert(sizeof(CollApi) == 48 && offsetof(CollApi, count) == 8 && offsetof(CollApi, datatype) == 16);
static_assert(offsetof(CollApi, root) == 24 && offsetof(CollApi, stream) == 32);
static_assert(offsetof(CollApi, graphCaptured) == 40);
static_assert(sizeof(P2pApi) == 40 && offsetof(P2pApi, datatype) == 16 && offsetof(P2pApi, stream) == 24);
static_assert(offsetof(P2pApi, graphCaptured) == 32);
static_assert(sizeof(CollV4) == 80 && offsetof(CollV4, func) == 8 && offsetof(CollV4, count) == 32);
static_assert(offsetof(CollV4, root) == 40 && offsetof(CollV4, datatype) == 48);
static_assert(offsetof(CollV4, nChannels) == 56 && offsetof(CollV4, nWarps) == 57);
static_assert(offsetof(CollV4, algo) == 64 && offsetof(CollV4, proto) == 72);
static_assert(sizeof(CollV5) == 88 && offsetof(CollV5, proto) == 72 && offsetof(CollV5, parentGroup) == 80);
static_assert(sizeof(P2pV4) == 40 && offsetof(P2pV4, datatype) == 16 && offsetof(P2pV4, count) == 24);
static_assert(offsetof(P2pV4, peer) == 32 && offsetof(P2pV4, nChannels) == 36);
static_assert(sizeof(P2pV5) == 48 && offsetof(P2pV5, nChannels) == 36 && offsetof(P2pV5, parentGroup) == 40);
static_assert(sizeof(ProxyOp) == 24 && offsetof(ProxyOp, channelId) == 4 && offsetof(ProxyOp, peer) == 8);
static_assert(offsetof(ProxyOp, nSteps) == 12 && offsetof(ProxyOp, isSend) == 20);
static_assert(sizeof(KernelCh) == 16 && offsetof(KernelCh, pTimer) == 8);
static_assert(sizeof(CeColl) == 88);
static_assert(sizeof(EventV4) == 104 && offsetof(EventV4, parentObj) == 8 && offsetof(EventV4, rank) == 16);
static_assert(offsetof(EventV4, coll) == 24 && offsetof(EventV4, proxyStep) == 24);
static_assert(sizeof(EventV5) == 112 && offsetof(EventV5, parentObj) == 8 && offsetof(EventV5, rank) == 16);
static_assert(offsetof(EventV5, coll) == 24 && offsetof(EventV5, kernelCh) == 24);
static_assert(sizeof(EventV6) == 112 && offsetof(EventV6, coll) == 24 && offsetof(EventV6, ceColl) == 24);
static_assert(sizeof(StateArgs) == 8 && sizeof(EventState) == 4);
static_assert(sizeof(PluginV4) == 48 && sizeof(PluginV5) == 48 && sizeof(PluginV6) == 48);
static_assert(offsetof(PluginV4, init) == 8 && offsetof(PluginV4, callbacks) == 16);

}  // namespace smon_rt::nccl
