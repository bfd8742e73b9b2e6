#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "base/background_thread.h"
#include "base/clock_converter.h"
#include "base/log.h"
#include "base/result.h"
#include "format/trace_records.h"
#include "record/drain.h"
#include "record/recorder.h"
#include "record/request_file.h"

namespace smon_rt {

struct ReporterOptions {
  std::string directory;  // of the trace; "": the thread has nothing to do and is not started
  std::string run_id = "run";
  std::uint32_t attempt = 0;
  std::int32_t rank = 0;
  // A snapshot costs a write of some ten KB; at 1,000 ranks and 5 s a shared file system sees 200 of them a second.
  std::chrono::nanoseconds snapshot_every = std::chrono::seconds(5);
  // One stat() of one file; a request names steps far enough ahead for every rank to hear of it.
  std::chrono::nanoseconds requests_every = std::chrono::seconds(2);
};

/// Does what may block: DIR/rank-00003.<run>-<attempt>.live, by which other nodes see what this process is doing, and
/// DIR/request.json, by which they ask it to sample steps.
///
/// The snapshot is a trace file of its own (docs/trace_format.md): identity, names, losses, and what is open as aborted
/// spans that end at the time of the snapshot. It is replaced as a whole (temporary file and rename), and removed when
/// recording stops.
///
/// Threading: a thread of its own; the public functions from any. When the directory fails: said at most once a minute,
/// tried again at the next turn; the job never notices.
class Reporter {
 public:
  struct Counters {
    std::uint64_t snapshots = 0;
    std::uint64_t failed_snapshots = 0;
    std::uint64_t accepted_requests = 0;
    std::uint64_t malformed_requests = 0;
  };

  /// Recorder and drain outlive the thread.
  Reporter(Recorder& recorder, const Drain& drain, ReporterOptions options);

  Result<void> start();
  void request_stop() { thread_.request_stop(); }
  bool join_until(std::chrono::steady_clock::time_point deadline) { return thread_.join_until(deadline); }
  bool has_ended() const { return !thread_.has_started() || thread_.has_ended(); }
  const BackgroundThread& thread() const { return thread_; }

  void set_identity(TraceIdentity identity);

  /// Has the thread write this as DIR/request.json, for the other ranks.
  void publish_request(const SamplingRequest& request);

  Counters counters() const;
  const std::string& snapshot_path() const { return snapshot_path_; }

 private:
  void run();
  void write_snapshot(std::int64_t now_ns);
  std::string encode_snapshot(std::int64_t now_ns);
  bool has_request_to_publish() const;
  void write_published_request();
  void look_for_request();
  void take_request(const std::string& text);

  Recorder& recorder_;
  const Drain& drain_;
  const ReporterOptions options_;
  const std::string snapshot_path_;
  const std::string request_path_;
  BackgroundThread thread_{"smon_reporter"};

  // The thread alone.
  ClockConverter clock_;
  std::optional<std::string> seen_request_;
  LogLimiter snapshot_limiter_;
  LogLimiter request_limiter_;

  mutable std::mutex mutex_;
  TraceIdentity identity_;
  std::optional<SamplingRequest> to_publish_;

  std::atomic<std::uint64_t> snapshots_{0};
  std::atomic<std::uint64_t> failed_snapshots_{0};
  std::atomic<std::uint64_t> accepted_requests_{0};
  std::atomic<std::uint64_t> malformed_requests_{0};
};

}  // namespace smon_rt
