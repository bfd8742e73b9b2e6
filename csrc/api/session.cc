#include "api/session.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "api/c_interface.h"
#include "base/background_thread.h"
#include "base/process_state.h"
#include "record/leftovers.h"
#include "record/stale_snapshots.h"

namespace smon_rt {
namespace {

constexpr char kArenaDirectory[] = "/dev/shm";
constexpr std::uint32_t kMaxAttempts = 10'000;

bool exists(const std::string& path) {
  return ::access(path.c_str(), F_OK) == 0;
}

/// Whoever merges our arena has another working directory.
std::string absolute(const std::string& path) {
  if (path.empty() || path.front() == '/') return path;
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::absolute(path, error);
  return error ? path : whole.string();
}

/// The live process that has an arena of this run, attempt and rank.
std::optional<ArenaOwner> owner_of(const TraceIdentity& identity) {
  for (const std::string& name : Arena::file_names(identity.run_id, identity.attempt, identity.rank)) {
    if (auto owner = find_arena_owner(std::string(kArenaDirectory) + "/" + name)) return owner;
  }
  return std::nullopt;
}

/// The live process that records this rank and attempt into the same directory, which must not happen.
Result<void> refuse_second_process(const TraceIdentity& identity, const std::string& trace_dir) {
  const std::optional<ArenaOwner> owner = owner_of(identity);
  if (!owner || trace_dir.empty() || !is_in_directory(owner->trace_file, trace_dir)) return {};
  return Error{"process " + std::to_string(owner->pid) + " records run " + identity.run_id + ", attempt " +
               std::to_string(identity.attempt) + ", rank " + std::to_string(identity.rank) + " into " + trace_dir +
               " already, as this process (" + std::to_string(::getpid()) +
               ") would: give one of them another RANK or SMON_RT_RUN_ID"};
}

/// The first attempt without a file of this rank. A live process with an earlier one is refused: it is not an earlier
/// attempt, but a job whose ranks are not set.
Result<std::uint32_t> first_free_attempt(TraceIdentity identity, const std::string& trace_dir) {
  if (trace_dir.empty()) return std::uint32_t{0};
  for (identity.attempt = 0; identity.attempt < kMaxAttempts; ++identity.attempt) {
    const std::string path =
        trace_dir + "/" + trace_file_stem(identity.run_id, identity.attempt, identity.rank) + ".smon";
    if (!exists(path)) break;
    if (Result<void> refused = refuse_second_process(identity, trace_dir); !refused) return refused.error();
  }
  return identity.attempt;
}

}  // namespace

Result<std::unique_ptr<Session>> Session::start(const SessionOptions& options) {
  std::unique_ptr<Session> session(new Session);
  Result<void> done;
  // Apart: a file larger than RLIMIT_FSIZE allows is SIGXFSZ for the thread that writes.
  run_with_signals_blocked([&] { done = session->set_up(options); });
  if (done) done = session->start_threads(options);
  if (!done) {
    if (session->sink_ != nullptr) session->sink_->discard();  // or readers would take it for one that was killed
    delete session->recorder_;  // nothing was recorded yet: no thread of the job can be inside
    return done.error();
  }
  return session;
}

Result<void> Session::set_up(const SessionOptions& options) {
  trace_dir_ = absolute(options.trace_dir);
  if (options.gpu_timer != nullptr) gpu_timer_ = options.gpu_timer;
  identity_ = options.identity;
  identity_.pid = ::getpid();
  identity_.host = host_name();
  identity_.boot_id = boot_id();
  identity_.process_start_ticks = process_start_ticks(identity_.pid).value_or(0);
  identity_.time_namespace = time_namespace();
  identity_.sampling = {options.sampling.sample_ratio, options.sampling.warmup_steps, options.sampling.always_steps,
                        options.sampling.window_steps};
  if (options.attempt >= 0) {
    identity_.attempt = static_cast<std::uint32_t>(options.attempt);
  } else {
    Result<std::uint32_t> attempt = first_free_attempt(identity_, trace_dir_);
    if (!attempt) return attempt.error();
    identity_.attempt = *attempt;
  }
  if (Result<void> made = make_recorder(options); !made) return made;
  identity_.clock_source = static_cast<std::uint32_t>(recorder_->clock().source());
  identity_.memory = recorder_->arena().memory();

  TraceFileOptions file_options;
  file_options.directory = trace_dir_;
  file_options.run_id = identity_.run_id;
  file_options.attempt = identity_.attempt;
  file_options.rank = identity_.rank;
  file_options.max_file_bytes = options.max_file_bytes;
  sink_ = std::make_unique<TraceSink>(std::move(file_options), recorder_->interner());
  if (Result<void> opened = sink_->open(identity_); !opened) {
    warning_ = opened.error().message + "; recording goes on without a file";
  }
  const LeftoverCounts merged = merge_leftovers(kArenaDirectory, recorder_->arena().path());
  if (!merged.problem.empty() && warning_.empty()) warning_ = merged.problem;
  if (!sink_->file().is_on()) return {};
  StaleSnapshotOptions snapshots;
  snapshots.trace_directory = trace_dir_;
  snapshots.rank = identity_.rank;
  snapshots.arena_directory = kArenaDirectory;
  struct stat status{};  // of the file just made
  snapshots.now_s = ::stat(sink_->file().path().c_str(), &status) == 0 ? status.st_mtime : ::time(nullptr);
  remove_stale_snapshots(snapshots);
  return {};
}

Result<void> Session::make_recorder(const SessionOptions& options) {
  RecorderOptions recorder_options;
  recorder_options.sampling = options.sampling;
  recorder_options.gpu_timer = options.gpu_timer;
  recorder_options.arena.directory = kArenaDirectory;
  recorder_options.arena.run_id = identity_.run_id;
  recorder_options.arena.attempt = identity_.attempt;
  recorder_options.arena.rank = identity_.rank;
  recorder_options.arena.world_size = identity_.world_size;
  if (Result<void> refused = refuse_second_process(identity_, trace_dir_); !refused) return refused;
  if (const auto owner = owner_of(identity_); owner && !trace_dir_.empty()) {
    // Another job of this user that was not given a run id either: its trace lies elsewhere, only the names of the
    // two arenas would meet.
    recorder_options.arena.run_id.append(".").append(std::to_string(::getpid()));
  }
  auto recorder = Recorder::create(recorder_options);
  if (!recorder) return recorder.error();
  recorder_ = recorder->release();
  return {};
}

Result<void> Session::start_threads(const SessionOptions& options) {
  DrainOptions drain_options;
  drain_options.find_comm_tracker = options.find_comm_tracker;
  drain_ = std::make_unique<Drain>(*recorder_, *sink_, *gpu_timer_, drain_options);
  watchdog_ = std::make_unique<Watchdog>(recorder_->header());
  ReporterOptions reporter_options;
  if (sink_->file().error().empty()) reporter_options.directory = trace_dir_;  // else it would only fail, too
  reporter_options.run_id = identity_.run_id;
  reporter_options.attempt = identity_.attempt;
  reporter_options.rank = identity_.rank;
  reporter_ = std::make_unique<Reporter>(*recorder_, *drain_, std::move(reporter_options));
  reporter_->set_identity(identity_);
  if (Result<void> started = drain_->start(); !started) return started;
  // Recording works without the other two.
  Result<void> others = watchdog_->start();
  if (others) others = reporter_->start();
  if (!others && warning_.empty()) warning_ = others.error().message;
  drain_->report_cost_of(&reporter_->thread(), &watchdog_->thread());
  return {};
}

void Session::set_identity(const TraceIdentity& identity) {
  identity_ = identity;
  drain_->set_identity(identity);
  reporter_->set_identity(identity);
}

bool Session::stop(std::string_view reason, std::chrono::steady_clock::time_point deadline) {
  recorder_->set_phase(Phase::kStopping);
  recorder_->pause();  // before the drain's last look: what begins now would be lost in silence
  drain_->request_stop(reason);
  reporter_->request_stop();
  watchdog_->request_stop();
  // All three are asked first and waited for together.
  const bool drained = drain_->join_until(deadline);
  const bool reported = reporter_->join_until(deadline);
  const bool watched = watchdog_->join_until(deadline);
  if (!drained || !reported || !watched) return false;
  if (!last_status_) last_status_ = read_status_now();  // before the arena is gone
  close();
  return true;
}

bool Session::has_ended() const {
  const auto ended = [](const BackgroundThread& thread) { return !thread.has_started() || thread.has_ended(); };
  return drain_->has_ended() && ended(reporter_->thread()) && ended(watchdog_->thread());
}

void Session::stop_at_exit(std::chrono::nanoseconds limit) noexcept {
  recorder_->set_phase(Phase::kStopping);
  recorder_->pause();
  drain_->request_stop_quietly();
  reporter_->request_stop();
  watchdog_->request_stop();
  const auto deadline = std::chrono::steady_clock::now() + limit;
  // The reporter too: it removes the live snapshot, and would leave it behind. Not removed here: in a file system that
  // has stopped answering, this thread would not come back.
  while ((!drain_->has_ended() || !reporter_->has_ended()) && std::chrono::steady_clock::now() < deadline) {
    const timespec nap{0, 200'000};
    ::nanosleep(&nap, nullptr);
  }
  if (drain_->has_ended()) recorder_->close();
}

std::string Session::loss() const {
  if (!drain_->failure().empty()) return drain_->failure();
  if (std::string file_error = drain_->status().file_error; !file_error.empty()) return file_error;
  if (!last_status_ || last_status_->unwritten_spans == 0) return "";
  return std::to_string(last_status_->unwritten_spans) + " spans could not be written";
}

smon_status Session::read_status() {
  return last_status_ ? *last_status_ : read_status_now();
}

smon_status Session::read_status_now() {
  smon_status status = {};
  const ArenaHeader& header = recorder_->header();
  const DrainStatus drained = drain_->status();
  const TraceLosses losses = read_losses(header, "");
  status.step = header.step.load(std::memory_order_relaxed);
  status.recorded_spans = recorder_->recorded_spans();
  status.written_spans = drained.written_spans;
  status.dropped_spans = recorder_->dropped_spans();
  for (const auto& [kind, count] : losses.dropped_by_kind) {
    if (kind < SMON_KIND_COUNT) status.dropped_by_kind[kind] = count;
  }
  status.foreign_tokens = losses.foreign_tokens;
  status.stale_tokens = losses.stale_tokens;
  status.threads_without_ring = losses.threads_without_ring;
  status.sampled_steps = recorder_->sampled_steps();
  status.steps = recorder_->steps();
  status.uncounted_sequences = losses.uncounted_sequences;
  status.reclaimed_spans = losses.reclaimed_spans;
  status.saturated_steps = losses.saturated_steps;
  status.misused_calls = losses.misused_calls;
  status.unwritten_spans = losses.unwritten_spans;
  status.file_bytes = drained.file_bytes;
  status.drain_cpu_ns = drained.cpu_ns;
  copy_text(status.file_path, drained.file_path);
  copy_text(status.file_error, drained.file_error);
  return status;
}

std::int64_t Session::soonest_shared_step() const {
  if (trace_dir_.empty()) return -1;
  const DrainStatus drained = drain_->status();
  const double step_ns = std::max(drained.sampled_step_mean_ns, drained.unsampled_step_mean_ns);
  // Reporters look every two seconds: three turns, and never less than ten steps.
  constexpr double kMarginNs = 6e9;
  constexpr double kMostSteps = 1e6;
  const double steps = step_ns > 0 ? std::min(kMarginNs / step_ns, kMostSteps) : 0;
  return recorder_->sampling().current_step() + 1 + std::max<std::int64_t>(10, static_cast<std::int64_t>(steps) + 1);
}

void Session::close() {
  if (recorder_ != nullptr) recorder_->close();
}

}  // namespace smon_rt
