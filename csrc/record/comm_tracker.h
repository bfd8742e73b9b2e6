#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "record/comm_handle.h"
#include "record/comm_op.h"
#include "record/recorder.h"

namespace smon_rt {

/// What went another way than it should, since the process began.
struct CommCounts {
  std::uint64_t communicators = 0;  // that were opened
  std::uint64_t ops = 0;
  std::uint64_t joined_ops = 0;       // that belong to a span
  std::uint64_t foreign_handles = 0;  // of another process, or none of ours
  std::uint64_t stale_handles = 0;    // of what has ended, or whose slot has something newer
  std::uint64_t lost_ends = 0;        // never ended, and given up when their slot was needed
  std::uint64_t rejected_times = 0;   // of kernels: none, or none that can be true
  std::uint64_t untracked = 0;        // tables were full
};

/// What the library of collectives (NCCL, through its profiler interface) does, op by op and channel by channel.
///
/// Calls and ops lie in pools whose oldest slot is always the next to be used: an op that never ends costs its slot
/// only as long as the pool is large. Transfers over the network and their steps are folded in place, into their op and
/// into the arena's ChannelRecord; nothing of them goes into a ring.
///
/// Threading: any thread, lock-free; callbacks may be CUDA host functions. Steps of one transfer come one at a time.
/// Cost: no allocation, no system call. A step's callback is one clock reading and a handful of stores.
/// When full: handle 0, counted in untracked.
class CommTracker {
 public:
  static constexpr std::size_t kCommunicators = 256;
  static constexpr std::size_t kCalls = 1024;
  static constexpr std::size_t kOps = 4096;
  static constexpr std::size_t kTransfers = 8192;
  static constexpr std::size_t kKernels = 8192;
  static constexpr std::size_t kStepsInFlight = 8;  // of one transfer: what NCCL has at most
  static constexpr std::size_t kChannels = 64;

  CommTracker();
  ~CommTracker();
  CommTracker(const CommTracker&) = delete;
  CommTracker& operator=(const CommTracker&) = delete;

  /// A communicator of this process, which has a network if it spans nodes. 0: there are too many.
  CommHandle open_communicator(std::uint64_t library_id, bool has_network) noexcept;
  /// With whatever is in flight; its idle channels make room. True the first time, with `had_network`. Without a
  /// recorder nothing is recorded.
  bool close_communicator(Recorder* recorder, CommHandle communicator, bool* had_network) noexcept;

  /// Stands for the calls that the job groups.
  CommHandle begin_group() noexcept;
  /// A call of the job, on the job's thread: the span that is open there is its own, unless another call of another
  /// group has it already.
  CommHandle begin_call(Recorder& recorder, CommHandle communicator, CommHandle group, bool is_captured) noexcept;
  /// What comes of it. Without a call, as begin_call() the span that is open here.
  CommHandle begin_op(Recorder& recorder, CommHandle communicator, CommHandle call, const CommOpFacts& facts) noexcept;
  /// One channel's transfers over the network, of an op or of one in another process (0).
  CommHandle begin_transfer(Recorder& recorder, CommHandle communicator, CommHandle op, std::uint32_t channel,
                            bool is_send, std::int32_t peer) noexcept;
  CommHandle begin_step(CommHandle transfer, std::uint32_t step) noexcept;
  /// One channel's kernel of an op that asks for them, as it starts.
  CommHandle begin_kernel(Recorder& recorder, CommHandle communicator, CommHandle op, std::uint32_t channel,
                          std::uint64_t device_ns) noexcept;

  /// A step of a transfer waits for something else from now on.
  void enter(Recorder& recorder, CommHandle step, ChannelState state, std::uint64_t bytes) noexcept;
  void kernel_stopped(Recorder& recorder, CommHandle kernel, std::uint64_t device_ns) noexcept;

  /// Of anything but a communicator. Of an op: it is enqueued.
  void end(Recorder& recorder, CommHandle handle) noexcept;

  /// Our number of the communicator, known since a span of it was seen; 0 before.
  std::uint16_t comm_id_of(CommHandle communicator) noexcept;

  /// Ops have numbers below this, which only grow. False: no op has that number, or its slot is another's by now.
  std::uint64_t op_end() const noexcept { return next_op_.load(std::memory_order_acquire); }
  bool read_op(std::uint64_t number, CommOp* op) const noexcept;

  /// Ops so far that ask when their kernels run.
  std::uint64_t kernel_ops() const noexcept { return kernel_ops_.load(std::memory_order_acquire); }

  CommCounts counts() const noexcept;
  CommHandle inert_handle() const noexcept { return std::uint64_t{nonce_} << 48; }
  /// Whether the process that it was made in is this one.
  bool is_ours() const noexcept { return fork_count_ == fork_count(); }
  std::int32_t pid() const noexcept { return pid_; }

 private:
  using Type = comm_handle::Type;
  using Counter = std::atomic<std::uint64_t>;

  struct Communicator {
    std::atomic<std::uint32_t> ticket{0};
    std::atomic<bool> is_taken{false};
    std::atomic<std::uint32_t> number{0};
    std::atomic<std::uint64_t> library_id{0};
    std::atomic<bool> has_network{false};
    std::atomic<std::uint16_t> comm_id{kNoId};
    std::array<std::atomic<std::uint64_t>, kChannels> last_kernel_ns{};
  };
  struct Call {
    std::atomic<std::uint32_t> ticket{0};
    std::atomic<std::uint32_t> comm_seq{0};
    std::atomic<std::uint16_t> comm_id{kNoId};
    std::atomic<std::uint32_t> span_numbering{0};
    std::atomic<bool> is_captured{false};
    std::atomic<bool> is_open{false};

    bool take() noexcept { return !is_open.exchange(true, std::memory_order_acquire); }
  };
  struct Op;
  struct Transfer;
  struct Kernel;
  /// Who has a span that is open: an op that nobody waited for yet stays open, and what no hook saw is no part of it.
  struct Joined {
    std::atomic<Token> span{0};
    std::atomic<CommHandle> group{0};
    std::atomic<std::uint32_t> communicator{0};
  };
  struct Join {
    std::uint16_t comm_id = kNoId;
    std::uint32_t comm_seq = 0;
    std::uint32_t span_numbering = 0;  // kind and peer, by which spans are numbered
  };

  static void count(Counter& counter) noexcept { counter.fetch_add(1, std::memory_order_relaxed); }
  /// Whether a handle is of this process and this type; counted if not.
  bool is_of(CommHandle handle, Type type) noexcept;
  /// The oldest slot that is not in use, or, if many in a row are, one of which the end seems to be lost.
  template <typename Slot>
  Slot& take(const std::unique_ptr<Slot[]>& pool, std::size_t size, Counter& next, std::uint64_t* number) noexcept;
  template <typename Slot>
  Slot* find(const std::unique_ptr<Slot[]>& pool, std::size_t size, CommHandle handle, Type type) noexcept;
  Communicator* communicator_of(CommHandle handle) noexcept;
  Op* op_of(CommHandle handle) noexcept;
  Join join(Recorder& recorder, Communicator& communicator, CommHandle group) noexcept;
  ChannelRecord* channel_of(Recorder& recorder, const Communicator& communicator, std::uint32_t channel,
                            bool is_send) noexcept;
  static void free_channels(Recorder& recorder, std::uint32_t communicator) noexcept;
  void end_op(Recorder& recorder, CommHandle handle) noexcept;
  void end_transfer(Recorder& recorder, CommHandle handle) noexcept;
  void end_step(Recorder& recorder, CommHandle handle) noexcept;
  void end_kernel(CommHandle handle) noexcept;
  Transfer* step_of(CommHandle handle, std::atomic<std::uint16_t>** step) noexcept;

  const std::uint16_t nonce_;
  const std::uint32_t fork_count_;
  const std::int32_t pid_;
  std::unique_ptr<Communicator[]> communicators_;
  std::array<Joined, 256> joined_{};
  std::unique_ptr<Call[]> calls_;
  std::unique_ptr<Op[]> ops_;
  std::unique_ptr<Transfer[]> transfers_;
  std::unique_ptr<Kernel[]> kernels_;

  alignas(kCacheLineBytes) Counter next_group_{0};
  alignas(kCacheLineBytes) Counter next_call_{0};
  alignas(kCacheLineBytes) Counter next_op_{0};
  alignas(kCacheLineBytes) Counter next_transfer_{0};
  alignas(kCacheLineBytes) Counter next_kernel_{0};
  Counter next_communicator_{0};
  Counter ops_begun_{0};
  Counter joined_ops_{0};
  Counter kernel_ops_{0};
  Counter foreign_handles_{0};
  Counter stale_handles_{0};
  Counter lost_ends_{0};
  Counter rejected_times_{0};
  Counter untracked_{0};
};

/// The tracker of this process; null while there is none, as before NCCL's first communicator.
using FindCommTracker = const CommTracker* (*)() noexcept;

}  // namespace smon_rt
