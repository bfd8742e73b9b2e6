#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "api/smon_rt.h"
#include "base/result.h"
#include "format/trace_records.h"
#include "record/drain.h"
#include "record/gpu_timer.h"
#include "record/recorder.h"
#include "record/reporter.h"
#include "record/trace_sink.h"
#include "record/watchdog.h"

namespace smon_rt {

struct SessionOptions {
  std::string trace_dir;      // "": rings and table only
  std::int32_t attempt = -1;  // -1: the first that has no file yet
  std::uint64_t max_file_bytes = std::uint64_t{1} << 30;
  SamplingOptions sampling;
  GpuTimer* gpu_timer = nullptr;  // nullptr: spans have host times only; else it lives as long as the process
  FindCommTracker find_comm_tracker = nullptr;
  // run_id, rank, world_size, local_rank, layout and facts are taken from here; the rest is filled in.
  TraceIdentity identity;
};

/// Everything that is there between start and stop.
///
/// Threading: made, stopped and freed by one control thread at a time (Runtime's lock); accessors by any.
class Session {
 public:
  /// Merges what dead processes left, makes the arena and the file, starts our threads; recording is still off. A file
  /// that cannot be made is no error: file_error() says why there is none.
  static Result<std::unique_ptr<Session>> start(const SessionOptions& options);

  /// Ends recording and writes what is left. False: the file system did not answer in time; keep the session until
  /// has_ended().
  bool stop(std::string_view reason, std::chrono::steady_clock::time_point deadline);
  bool has_ended() const;

  /// The same from an exit handler: takes no lock and frees nothing, and leaves the arena to the next start if time
  /// runs out.
  void stop_at_exit(std::chrono::nanoseconds limit) noexcept;

  void set_identity(const TraceIdentity& identity);
  const TraceIdentity& identity() const { return identity_; }

  Recorder& recorder() { return *recorder_; }
  const Drain& drain() const { return *drain_; }
  Reporter& reporter() { return *reporter_; }
  const Watchdog& watchdog() const { return *watchdog_; }
  /// All but is_started, is_paused and struct_size. After a stop that ended: as it was then.
  smon_status read_status();
  /// Once stopped: why not everything is in the file, "" if it is, or if there should be none.
  std::string loss() const;
  /// A step that lies far enough ahead for the other ranks to hear of it; -1, the next one, where there is no file for
  /// them to hear by.
  std::int64_t soonest_shared_step() const;
  const std::string& trace_dir() const { return trace_dir_; }
  const std::string& warning() const { return warning_; }  // one line about what start() could not do, "" if nothing

 private:
  Session() = default;
  Result<void> set_up(const SessionOptions& options);
  Result<void> make_recorder(const SessionOptions& options);
  Result<void> start_threads(const SessionOptions& options);
  void close();
  smon_status read_status_now();

  std::string trace_dir_;
  TraceIdentity identity_;
  std::string warning_;
  NullGpuTimer no_gpu_;
  GpuTimer* gpu_timer_ = &no_gpu_;
  Recorder* recorder_ = nullptr;  // outlives the session: a thread of the job may be inside it whenever it is closed
  std::unique_ptr<TraceSink> sink_;
  std::unique_ptr<Drain> drain_;
  std::unique_ptr<Watchdog> watchdog_;
  std::unique_ptr<Reporter> reporter_;
  std::optional<smon_status> last_status_;  // once the arena is gone
};

}  // namespace smon_rt
