#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "format/kind.h"
#include "format/span.h"

// The memory that outlives a process: the file /dev/shm/smon-<uid>-<run>-<attempt>-<rank>, mode 0600. It holds the
// in-flight table (open spans, step, counters of each communicator) and the rings of spans that are not yet in the
// trace file. Another process reads it while the owner runs, hangs or is dead.
//
// Layout: ArenaHeader at 0, then at the offsets that the header gives the tables of ThreadRecord and CommRecord, the
// slots and the rings of the threads. Readers step through tables by the record sizes in the header, so that records
// may grow at their end. Everything a reader may see torn is guarded: single atomics, or a seqlock (OpenSlot, clock).

namespace smon_rt {

inline constexpr char kArenaMagic[8] = {'s', 'm', 'o', 'n', 's', 'h', 'm', '1'};
inline constexpr std::size_t kCacheLineBytes = 64;
inline constexpr std::size_t kLossKinds = 32;  // room for kinds to come
static_assert(kLossKinds >= kKindCount);

/// What the process is doing, as far as it said so.
enum class Phase : std::uint32_t { kStarting = 0, kTraining = 1, kEval = 2, kCheckpoint = 3, kStopping = 4 };

/// A consistent reading of the host's clocks: written by the drain thread, read by anyone.
struct ArenaClock {
  std::atomic<std::uint32_t> sequence{0};  // odd while being written
  std::uint32_t source = 0;                // ClockSource of trace.proto
  std::atomic<std::int64_t> ticks{0};
  std::atomic<std::int64_t> monotonic_ns{0};
  std::atomic<std::int64_t> realtime_ns{0};
  std::atomic<double> ns_per_tick{1};
};

/// Counted, never hidden: what recording lost since the process began.
struct ArenaLosses {
  std::atomic<std::uint64_t> dropped_by_kind[kLossKinds]{};
  std::atomic<std::uint64_t> foreign_tokens{0};
  std::atomic<std::uint64_t> stale_tokens{0};
  std::atomic<std::uint64_t> threads_without_ring{0};
  std::atomic<std::uint64_t> unwritten_spans{0};
  std::atomic<std::uint64_t> late_requests{0};
  std::atomic<std::uint64_t> uncounted_sequences{0};
};

/// As ArenaLosses, which cannot grow where it is.
struct ArenaMoreLosses {
  std::atomic<std::uint64_t> reclaimed_spans{0};
  std::atomic<std::uint64_t> saturated_steps{0};
  std::atomic<std::uint64_t> misused_calls{0};
};

struct ArenaHeader {
  char magic[8] = {};
  std::uint64_t arena_bytes = 0;
  std::uint32_t header_bytes = 0;
  std::uint32_t span_bytes = 0;
  std::uint32_t slot_bytes = 0;
  std::uint32_t thread_record_bytes = 0;
  std::uint32_t thread_record_count = 0;
  std::uint32_t comm_record_bytes = 0;
  std::uint32_t comm_record_count = 0;
  std::uint32_t is_complete = 0;  // set last: before that a reader sees an arena in the making
  std::uint64_t thread_records_offset = 0;
  std::uint64_t comm_records_offset = 0;

  // Who owns it. A pid alone may be reused: the start time tells.
  std::int32_t pid = 0;
  std::int32_t rank = 0;
  std::int32_t world_size = 1;
  std::uint32_t attempt = 0;
  std::uint64_t process_start_ticks = 0;  // field 22 of /proc/<pid>/stat
  char run_id[64] = {};
  char host[64] = {};
  char boot_id[40] = {};
  char trace_file[512] = {};  // the file that the rings are drained to, "" for none

  ArenaClock clock;

  // Heartbeats, CLOCK_MONOTONIC nanoseconds.
  std::atomic<std::int64_t> drain_beat_ns{0};
  std::atomic<std::int64_t> watchdog_beat_ns{0};
  std::atomic<std::int64_t> reporter_beat_ns{0};

  std::atomic<std::int64_t> step{-1};
  std::atomic<std::int64_t> step_start_ticks{0};
  std::atomic<std::uint32_t> is_sampled{0};
  std::atomic<Phase> phase{Phase::kStarting};
  std::atomic<std::uint64_t> finished_steps{0};

  ArenaLosses losses;

  // The times of the last steps that are not in the file yet: a ring of StepTicks, indices as those of ThreadRecord.
  std::uint64_t step_log_offset = 0;
  std::uint32_t step_log_capacity = 0;
  std::uint32_t step_ticks_bytes = 0;
  std::atomic<std::uint64_t> step_write_index{0};
  std::atomic<std::uint64_t> step_read_index{0};

  ArenaMoreLosses more_losses;

  // How far the trace file is settled: before this offset, where a packet begins, lies nothing that is still in a ring
  // or in the log of steps, so who merges the arena needs not read it. 0: from its beginning on.
  std::atomic<std::uint64_t> settled_bytes{0};
  std::atomic<std::uint32_t> settled_communicators{0};  // those of ids up to this one are named before it
  std::atomic<std::uint32_t> host_only_spans{0};        // a loss, as of the drain thread's last look

  // Channels of NCCL's communicators: a table of ChannelRecord.
  std::uint64_t channel_records_offset = 0;
  std::uint32_t channel_record_bytes = 0;
  std::uint32_t channel_record_count = 0;

  std::atomic<std::uint64_t> overwritten_comm_ops{0};  // a loss, as of the drain thread's last look
};

/// One step as it happened, in ticks of the recorder's clock.
struct StepTicks {
  std::uint32_t step = 0;
  bool is_sampled = false;
  bool is_warmup = false;
  bool is_counted = false;  // the number is our own count
  bool unused = false;
  std::int64_t start_ticks = 0;
  std::int64_t end_ticks = 0;
};

enum class ThreadState : std::uint32_t { kFree = 0, kLive = 1, kExited = 2 };  // exited: free once drained

/// One recording thread: its ring (single producer, single consumer) and its open spans.
struct ThreadRecord {
  std::atomic<ThreadState> state{ThreadState::kFree};
  std::int32_t thread_id = 0;
  char name[16] = {};
  std::uint32_t ring_id = 0;        // never reused within a process; in every SpanBatch
  std::uint32_t ring_capacity = 0;  // spans, a power of two
  std::uint64_t ring_offset = 0;
  std::uint64_t slots_offset = 0;
  std::uint32_t slot_count = 0;
  std::uint32_t unused = 0;

  // Indices count spans since the thread began; entry i lies at i modulo capacity. Apart, so that producer and
  // consumer do not share a cache line.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> write_index{0};
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> read_index{0};  // handed to the sink up to here
};

/// An open span. The owner alone opens it; whoever wins the exchange open -> ending ends it and frees it.
struct OpenSlot {
  // generation << 2 | state; the generation grows with each opening, so that a stale token does not match.
  std::atomic<std::uint32_t> state{0};
  // Seqlock over `span` for readers outside the process: odd while being written.
  std::atomic<std::uint32_t> sequence{0};
  // 0: its step is not sampled. Open for whoever asks what hangs, but not for the file; the start may be 0 (not read).
  std::atomic<std::uint32_t> is_recorded{0};
  std::uint32_t unused = 0;
  Span span;

  static constexpr std::uint32_t kFree = 0;
  static constexpr std::uint32_t kOpen = 1;
  static constexpr std::uint32_t kEnding = 2;
  static constexpr std::uint32_t kStateMask = 3;
  static constexpr std::uint32_t kGeneration = kStateMask + 1;  // what a new generation adds to the state
};

/// Sequence numbers of a communicator on this rank. Three-valued: what cannot be known stays 0.
struct CommRecord {
  std::atomic<std::uint32_t> comm_id{0};  // 0: free
  std::int32_t member_count = 0;
  char name[48] = {};
  char dimension[8] = {};
  std::atomic<std::uint64_t> enqueued{0};
  std::atomic<std::uint64_t> started{0};
  std::atomic<std::uint64_t> completed{0};
  std::atomic<std::int64_t> last_enqueued_ticks{0};
  std::atomic<std::int64_t> last_completed_ticks{0};
  std::atomic<std::uint32_t> last_kind{0};
  std::atomic<std::uint32_t> has_stream_waits{0};  // 1: a wait makes a stream of the GPU wait, and returns at once
  std::uint32_t unused[4] = {};
};

/// What a channel of a communicator waits for. The numbers are in the arena: never renumber.
enum class ChannelState : std::uint32_t {
  kIdle = 0,
  kSendGpuWait = 1,    // for the GPU to have data to send
  kSendPeerWait = 2,   // for the peer to have room
  kSendWait = 3,       // posted: for the network to have sent it
  kRecvWait = 4,       // posted: for the network to have received something
  kRecvFlushWait = 5,  // received: for it to be visible to the GPU
  kRecvGpuWait = 6,    // for the GPU to have used it
};

/// How far one direction of one channel of a communicator has come, in transfers over the network. By the one thread
/// that moves the channel's data; read by who asks what hangs.
struct ChannelRecord {
  // 0: free. Else communicator's number in this process << 16 | channel << 1 | is_send, and 1 << 63.
  std::atomic<std::uint64_t> key{0};
  std::atomic<std::uint64_t> nccl_comm{0};  // NCCL's number of the communicator, the same on all its ranks
  std::atomic<std::uint64_t> begun{0};
  std::atomic<std::uint64_t> moved{0};  // handed to the network (sends), received from it (receives)
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> moved_bytes{0};
  std::atomic<std::int64_t> state_ticks{0};  // when the state was entered
  std::atomic<ChannelState> state{ChannelState::kIdle};
  std::atomic<std::uint16_t> comm_id{0};  // ours, 0 as long as no span of the communicator was seen
  std::atomic<std::int16_t> peer{-1};     // rank in the communicator

  static constexpr std::uint64_t make_key(std::uint32_t communicator, std::uint32_t channel, bool is_send) {
    return std::uint64_t{1} << 63 | std::uint64_t{communicator} << 16 | std::uint64_t{channel & 0xff} << 1 |
           (is_send ? 1 : 0);
  }
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<double>::is_always_lock_free);
static_assert(sizeof(ArenaHeader) <= 4096);
/// Of the first header that was written. What came after is at its end: a reader asks header_bytes whether it is there.
inline constexpr std::size_t kFirstHeaderBytes = 1160;
static_assert(offsetof(ArenaHeader, losses) + offsetof(ArenaLosses, uncounted_sequences) == kFirstHeaderBytes);
/// Of those with a log of steps.
inline constexpr std::size_t kSecondHeaderBytes = 1200;
static_assert(offsetof(ArenaHeader, more_losses) == kSecondHeaderBytes);
/// Of those without channels.
inline constexpr std::size_t kThirdHeaderBytes = 1240;
static_assert(offsetof(ArenaHeader, channel_records_offset) == kThirdHeaderBytes);
/// Of those without losses of NCCL's operations.
inline constexpr std::size_t kFourthHeaderBytes = 1256;
static_assert(offsetof(ArenaHeader, overwritten_comm_ops) == kFourthHeaderBytes);
static_assert(sizeof(StepTicks) == 24);
static_assert(sizeof(ThreadRecord) == 3 * kCacheLineBytes);
static_assert(sizeof(OpenSlot) == 80);
static_assert(sizeof(CommRecord) == 128);
static_assert(sizeof(ChannelRecord) == kCacheLineBytes);

}  // namespace smon_rt
