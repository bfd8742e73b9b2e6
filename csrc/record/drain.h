#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/background_thread.h"
#include "base/clock_converter.h"
#include "base/result.h"
#include "format/trace_records.h"
#include "record/comm_collector.h"
#include "record/comm_times.h"
#include "record/drain_pace.h"
#include "record/event_resolver.h"
#include "record/gpu_timer.h"
#include "record/overhead.h"
#include "record/recorder.h"
#include "record/ring_collector.h"
#include "record/trace_sink.h"

namespace smon_rt {

struct DrainOptions {
  // How long the thread sleeps between looks at the rings.
  DrainPaceOptions pace;
  // Spans wait this long for a batch that is worth its packet. They are in the arena meanwhile, so a crash costs none.
  std::chrono::nanoseconds max_age = std::chrono::seconds(1);
  // Losses, cost and the clocks, and a look whether the file is still there.
  std::chrono::nanoseconds upkeep_every = std::chrono::seconds(5);
  // When recording stops, how long spans wait for the GPU to come to their end.
  std::chrono::nanoseconds wait_for_gpu = std::chrono::milliseconds(300);
  // Spans that are open when recording stops are written as aborted.
  bool write_open_spans = true;
  // Where NCCL's operations are known; nullptr: nowhere.
  FindCommTracker find_comm_tracker = nullptr;
};

/// The ring of spans that were open when a snapshot was taken or a process died: no ring of a thread has this id. Those
/// open when recording stopped have a ring id of their own, since a process may stop more than once.
inline constexpr std::uint32_t kOpenSpansRing = 0xffff'ffff;

/// What the drain thread has done so far.
struct DrainStatus {
  std::uint64_t written_spans = 0;  // without those of a file that was removed
  std::uint64_t file_bytes = 0;     // of all files since the start
  std::uint64_t cpu_ns = 0;
  double sampled_step_mean_ns = 0;
  double unsampled_step_mean_ns = 0;
  std::string file_path;   // the newest file, "" without
  std::string file_error;  // why nothing is written, "" if it is
};

/// Takes what the job's threads recorded, makes nanoseconds of ticks, and appends it to the trace file.
///
/// Threading: a thread of its own; the public functions may be called by any thread. Never the GIL, never a wait for a
/// GPU; what it may wait for is its file. Cost: 5 M spans/s and more on one core.
/// When full, or when the file fails: spans are taken and counted as unwritten, the job never notices.
class Drain {
 public:
  /// The sink is open (or off); recorder and timer outlive the thread.
  Drain(Recorder& recorder, TraceSink& sink, GpuTimer& timer, DrainOptions options = {});

  Result<void> start();

  /// A changed identity goes into the file soon.
  void set_identity(TraceIdentity identity);

  /// Everything that was recorded goes into the file, which is closed. Recording must be off, or the end is open.
  void request_stop(std::string_view reason);
  /// As request_stop, without a lock: for exit handlers, which may have interrupted anything.
  void request_stop_quietly() {
    is_exiting_.store(true, std::memory_order_relaxed);
    thread_.request_stop();
  }
  /// False if the file system did not answer by then.
  bool join_until(std::chrono::steady_clock::time_point deadline) { return thread_.join_until(deadline); }
  bool has_ended() const { return thread_.has_ended(); }
  /// What ended the thread before its work was done, "" if nothing. Only once has_ended().
  const std::string& failure() const { return thread_.failure(); }

  /// What others of our threads have cost, for the file.
  void report_cost_of(const BackgroundThread* reporter, const BackgroundThread* watchdog);

  DrainStatus status() const;

 private:
  static constexpr std::size_t kStepsInPacket = 256;
  static_assert(kStepsInPacket <= StepLog::kCapacity / 2, "steps wait in the log until they are written");

  struct StepMean {
    double sum_ns = 0;
    std::uint64_t count = 0;
    double mean() const { return count == 0 ? 0 : sum_ns / static_cast<double>(count); }
  };

  void run();
  void sleep_until(std::int64_t until_ns);
  void serve_gpu();
  void finish_events();
  void pass(std::int64_t now_ns, bool everything);
  void write_new_identity();
  std::size_t take_steps(std::string& out, std::int64_t now_ns, bool everything);
  void say_overhead(const Overhead& overhead);
  void say_losses(const TraceLosses& losses);
  void say_full_names();
  void settle();
  void append_open_spans(std::string& out);
  void upkeep(bool everything);
  void say_error();
  ClockReading read_clock();
  void publish();
  std::chrono::nanoseconds next_sleep(std::int64_t now_ns);

  Recorder& recorder_;
  TraceSink& sink_;
  const DrainOptions options_;
  ClockConverter clock_;
  EventResolver resolver_;
  CommTimes comm_times_;
  RingCollector rings_;
  CommCollector comm_;
  BackgroundThread thread_{"smon_drain"};
  std::atomic<bool> is_exiting_{false};  // the driver must not be called any more

  // The drain thread alone.
  DrainPace pace_;
  std::int64_t last_look_ns_ = 0;
  std::size_t new_step_count_ = 0;  // ended since the last look
  std::string settled_path_;        // the file that the arena's header names
  std::string out_;
  std::vector<StepTime> step_times_;
  std::int64_t steps_waiting_since_ns_ = 0;
  std::int64_t last_upkeep_ns_ = 0;
  std::int64_t last_reading_ns_ = 0;
  bool has_said_error_;  // a file that failed never comes back: once is enough
  TraceLosses written_losses_;
  const std::uint32_t open_spans_ring_ = take_ring_id();
  std::uint64_t written_spans_ = 0;
  StepMean sampled_, unsampled_;              // of the whole run
  StepMean sampled_since_, unsampled_since_;  // since the last packet of recorder cost
  OverheadEstimate overhead_;
  bool has_said_overhead_ = false;
  bool has_said_reclaimed_ = false;
  bool has_said_saturated_ = false;
  bool has_said_names_ = false;
  TraceRecorderCost written_cost_;  // totals at the last packet

  mutable std::mutex mutex_;
  DrainStatus status_;
  TraceIdentity identity_;
  bool has_new_identity_ = false;
  std::string stop_reason_ = "exit";
  const BackgroundThread* reporter_ = nullptr;
  const BackgroundThread* watchdog_ = nullptr;
};

/// The losses of an arena's header, as they go into files.
TraceLosses read_losses(const ArenaHeader& header, std::string_view sink_error);

/// Spans of steps that are not sampled are open without a start time of their own: left out, or given their step's.
enum class UnsampledSpans : std::uint8_t { kLeaveOut, kFromStepStart };

/// Open spans of all threads, in nanoseconds, ending now and flagged as aborted.
std::vector<Span> read_open_spans(Arena& arena, const ClockConverter& clock, std::int64_t now_ns,
                                  UnsampledSpans unsampled);

}  // namespace smon_rt
