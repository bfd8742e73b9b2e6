#include "record/drain.h"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/process_state.h"
#include "format/trace_encoder.h"

namespace smon_rt {
namespace {

// Two readings closer than this would make a line whose slope is mostly the error of reading.
constexpr std::int64_t kShortestLineNs = 10'000'000;

void publish_clock(ArenaClock& clock, const ClockReading& reading, double ns_per_tick) {
  const std::uint32_t sequence = clock.sequence.load(std::memory_order_relaxed);
  clock.sequence.store(sequence + 1, std::memory_order_relaxed);
  // release: who sees a new value sees the odd number; pairs with the acquire loads of readers. On the values, not in a
  // fence, which ThreadSanitizer does not know.
  clock.ticks.store(reading.ticks, std::memory_order_release);
  clock.monotonic_ns.store(reading.monotonic_ns, std::memory_order_release);
  clock.realtime_ns.store(reading.realtime_ns, std::memory_order_release);
  clock.ns_per_tick.store(ns_per_tick, std::memory_order_release);
  clock.sequence.store(sequence + 2, std::memory_order_release);  // pairs with the readers' acquire of the even number
}

}  // namespace

Drain::Drain(Recorder& recorder, TraceSink& sink, GpuTimer& timer, DrainOptions options)
    : recorder_(recorder),
      sink_(sink),
      options_(options),
      resolver_(recorder.arena(), recorder.interner(), timer, recorder.clock(), clock_),
      comm_times_(options.find_comm_tracker, recorder.clock(), clock_, resolver_),
      rings_(recorder.arena(), clock_, resolver_, options.max_age.count(), &comm_times_),
      comm_(options.find_comm_tracker, recorder.arena(), clock_),
      pace_(options.pace),
      has_said_error_(!sink.file().error().empty()) {  // whoever opened it has said it
  sink_.file().set_last_words([&recorder](const std::string& error) {
    std::string packets;
    append_losses(packets, read_losses(recorder.header(), error));
    return packets;
  });
  read_clock();
  last_look_ns_ = last_reading_ns_;  // nothing is recorded before
  publish();
}

Result<void> Drain::start() {
  return thread_.start([this] { run(); });
}

void Drain::set_identity(TraceIdentity identity) {
  const std::lock_guard lock(mutex_);
  identity_ = std::move(identity);
  has_new_identity_ = true;
}

void Drain::request_stop(std::string_view reason) {
  {
    const std::lock_guard lock(mutex_);
    stop_reason_ = reason;
  }
  thread_.request_stop();
}

void Drain::report_cost_of(const BackgroundThread* reporter, const BackgroundThread* watchdog) {
  const std::lock_guard lock(mutex_);
  reporter_ = reporter;
  watchdog_ = watchdog;
}

DrainStatus Drain::status() const {
  const std::lock_guard lock(mutex_);
  DrainStatus status = status_;
  status.cpu_ns = thread_.cpu_ns();
  return status;
}

void Drain::run() {
  while (!thread_.is_stop_requested()) {
    const std::int64_t now_ns = monotonic_ns();
    pass(now_ns, false);
    sleep_until(monotonic_ns() + next_sleep(now_ns).count());
  }
  finish_events();
  pass(monotonic_ns(), true);
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    reason = stop_reason_;
  }
  sink_.close(reason);
  say_error();
  publish();
}

/// Looks for what the GPU has done meanwhile, if there is one.
void Drain::sleep_until(std::int64_t until_ns) {
  for (std::int64_t now_ns = monotonic_ns(); now_ns < until_ns && !thread_.is_stop_requested();
       now_ns = monotonic_ns()) {
    thread_.wait_for(std::chrono::nanoseconds(std::min(until_ns - now_ns, resolver_.next_poll_in_ns())));
    resolver_.poll();
  }
}

void Drain::serve_gpu() {
  GpuSpans* gpu = recorder_.gpu_spans();
  if (gpu == nullptr || is_exiting_.load(std::memory_order_relaxed)) return;
  gpu->serve();
  if (resolver_.is_active() || !gpu->has_streams() || !resolver_.activate()) return;
  // The usual 50 us that a sleep may take longer are as long as the shortest of them.
  ::prctl(PR_SET_TIMERSLACK, 5'000UL);
}

/// What the GPU has nearly done is worth a moment.
void Drain::finish_events() {
  const std::int64_t deadline_ns = monotonic_ns() + options_.wait_for_gpu.count();
  const auto is_waiting = [this] {
    const bool has_events = resolver_.look();
    return comm_times_.look() || has_events;
  };
  while (!is_exiting_.load(std::memory_order_relaxed) && is_waiting() && monotonic_ns() < deadline_ns) {
    const timespec nap{0, 1'000'000};  // the thread itself does not sleep any more once it has been asked to stop
    ::nanosleep(&nap, nullptr);
  }
  if (is_exiting_.load(std::memory_order_relaxed)) resolver_.stop_asking();
}

std::chrono::nanoseconds Drain::next_sleep(std::int64_t now_ns) {
  DrainLook look;
  look.filled_ratio = std::max({rings_.filled_ratio(), comm_.filled_ratio(),
                                static_cast<double>(new_step_count_) / static_cast<double>(StepLog::kCapacity)});
  look.since_last = std::chrono::nanoseconds(now_ns - std::exchange(last_look_ns_, now_ns));
  look.may_fill = is_recording() && recorder_.header().is_sampled.load(std::memory_order_relaxed) != 0;
  return pace_.next(look);
}

ClockReading Drain::read_clock() {
  const ClockReading reading = recorder_.clock().read();
  if (clock_.add(reading)) publish_clock(recorder_.header().clock, reading, clock_.ns_per_tick());
  last_reading_ns_ = reading.monotonic_ns;
  return reading;
}

void Drain::pass(std::int64_t now_ns, bool everything) {
  recorder_.header().drain_beat_ns.store(now_ns, std::memory_order_relaxed);
  out_.clear();
  settle();
  write_new_identity();
  serve_gpu();
  comm_times_.look();
  const std::uint64_t span_count = rings_.look(now_ns, everything);
  // After the look: no span that it takes ends after the reading, so none lies beyond the last line, where a line's
  // slope counts, and the first line least of all (a single reading has none).
  if (span_count > 0 || clock_.reading_count() < 2 || now_ns - last_reading_ns_ >= kShortestLineNs) read_clock();
  // At once, not with the spans: should the process be killed, its names are nowhere else.
  sink_.append_new_names(out_);
  if (span_count > 0) rings_.encode(out_);
  comm_.append_ops(out_, now_ns, everything);
  const std::size_t step_count = take_steps(out_, now_ns, everything);
  if (everything && options_.write_open_spans) append_open_spans(out_);
  if (!out_.empty()) {
    if (sink_.write(out_, span_count)) {
      written_spans_ += span_count;
    } else if (!sink_.file().error().empty()) {  // no error: nobody asked for a file
      recorder_.header().losses.unwritten_spans.fetch_add(span_count, std::memory_order_relaxed);
    }
  }
  rings_.commit();
  recorder_.step_log().take(step_count);
  if (everything || now_ns - last_upkeep_ns_ >= options_.upkeep_every.count()) {
    last_upkeep_ns_ = now_ns;
    upkeep(everything);
    publish();
  } else if (!out_.empty()) {
    publish();
  }
}

/// Says how far the file need not be read by who merges the arena: all that lies before has left rings and log, since
/// what was written last is taken out of them by now. Of another file than the header names, nothing is said.
void Drain::settle() {
  if (!sink_.file().is_on() || settled_path_ != sink_.file().path()) return;
  ArenaHeader& header = recorder_.header();
  const std::uint64_t bytes = sink_.file().file_bytes();
  if (header.settled_bytes.load(std::memory_order_relaxed) == bytes) return;
  // First: names that lie before the new offset must not be missed there.
  header.settled_communicators.store(sink_.written_communicators(), std::memory_order_release);
  header.settled_bytes.store(bytes, std::memory_order_release);
}

/// What was told, or which GPU was found to be the process's where nobody had told.
void Drain::write_new_identity() {
  static const std::string kNone;
  const std::string& gpu_uuid = recorder_.gpu_spans() != nullptr ? recorder_.gpu_spans()->device_uuid() : kNone;
  const bool lacks_gpu = !gpu_uuid.empty() && sink_.file().is_on() && sink_.identity().gpu_uuid.empty();
  TraceIdentity identity;
  {
    const std::lock_guard lock(mutex_);  // not while writing: whoever asks for the status would wait for the file
    const bool is_new = std::exchange(has_new_identity_, false);
    if (!is_new && !lacks_gpu) return;
    identity = is_new ? identity_ : sink_.identity();
  }
  if (identity.gpu_uuid.empty()) identity.gpu_uuid = gpu_uuid;
  sink_.set_identity(identity);
}

/// Puts steps into a packet once there are enough of them; how many may leave the log when it is written.
std::size_t Drain::take_steps(std::string& out, std::int64_t now_ns, bool everything) {
  std::array<StepTicks, 128> ticks;
  new_step_count_ = 0;
  while (const std::size_t count = recorder_.step_log().peek(step_times_.size(), ticks)) {
    if (step_times_.empty()) steps_waiting_since_ns_ = now_ns;
    new_step_count_ += count;
    for (const StepTicks& step : std::span(ticks).first(count)) {
      StepTime time;
      time.step = step.step;
      time.start_ns = clock_.to_monotonic_ns(step.start_ticks);
      time.duration_ns =
          static_cast<std::uint64_t>(std::max<std::int64_t>(0, clock_.to_monotonic_ns(step.end_ticks) - time.start_ns));
      time.sampled = step.is_sampled;
      time.warmup = step.is_warmup;
      step_times_.push_back(time);
      if (step.is_warmup) continue;  // says nothing about what recording costs
      overhead_.add(step.is_sampled, static_cast<double>(time.duration_ns));
      for (StepMean* mean :
           {step.is_sampled ? &sampled_ : &unsampled_, step.is_sampled ? &sampled_since_ : &unsampled_since_}) {
        mean->sum_ns += static_cast<double>(time.duration_ns);
        ++mean->count;
      }
    }
  }
  const bool is_due = everything || step_times_.size() >= kStepsInPacket ||
                      now_ns - steps_waiting_since_ns_ >= options_.max_age.count();
  if (step_times_.empty() || !is_due) return 0;
  append_step_times(out, step_times_);
  const std::size_t count = step_times_.size();
  step_times_.clear();
  return count;
}

void Drain::say_overhead(const Overhead& overhead) {
  if (overhead.low_ratio <= kOverheadAlarmRatio || std::exchange(has_said_overhead_, true)) return;
  char text[400];
  std::snprintf(
      text, sizeof(text),
      "sampled steps take %.1f %% longer than the steps around them (at least %.1f %%), more than the 1 %% that "
      "recording may cost: %ssample less (SMON_RT_SAMPLE_RATIO=%.3g on all ranks), or call smon_rt.pause() at "
      "the same step on all ranks; nothing was changed",
      overhead.ratio * 100, overhead.low_ratio * 100,
      comm_times_.has_asked() ? "start without nccl_detail (SMON_RT_NCCL_DETAIL=0 on all ranks), " : "",
      recorder_.sampling().options().sample_ratio / 10);
  log(LogLevel::kWarning, text);
}

void Drain::say_losses(const TraceLosses& losses) {
  if (losses.reclaimed_spans != 0 && !std::exchange(has_said_reclaimed_, true)) {
    const std::optional<Kind> kind = recorder_.leaking_kind();
    log(LogLevel::kWarning, "spans are begun and never ended, most of them " +
                                std::string(kind ? kKindNames[static_cast<std::size_t>(*kind)] : "unknown") +
                                ": a thread had no room for more, and those of earlier steps are given up (counted as "
                                "reclaimed_spans, said once): end each span, by `with` or in a finally");
  }
  if (losses.saturated_steps != 0 && !std::exchange(has_said_saturated_, true)) {
    log(LogLevel::kWarning,
        "a step has a number of 2^32 - 1 or more: spans of such steps are not recorded (counted as saturated_steps, "
        "said once): number steps from 0 on");
  }
}

void Drain::say_full_names() {
  if (has_said_names_ || !recorder_.interner().are_names_full()) return;
  has_said_names_ = true;
  log(LogLevel::kWarning,
      "there are more names of spans and metrics than are kept (65,535, or 4 MiB in all): those after them have none "
      "(counted as misused_calls, said once): give what changes as microbatch, step or metric, not in the name");
}

void Drain::append_open_spans(std::string& out) {
  const std::vector<Span> spans = read_open_spans(recorder_.arena(), clock_, monotonic_ns(), UnsampledSpans::kLeaveOut);
  append_spans(out, open_spans_ring_, 0, spans);
}

void Drain::say_error() {
  if (sink_.file().error().empty() || std::exchange(has_said_error_, true)) return;
  log(LogLevel::kWarning, sink_.file().error() + "; recording goes on without a file");
}

void Drain::upkeep(bool everything) {
  if (const std::optional<Overhead> overhead = overhead_.get()) say_overhead(*overhead);
  const std::uint64_t host_only_spans =
      resolver_.unresolved_spans() + comm_times_.host_only_spans() +
      (recorder_.gpu_spans() != nullptr ? recorder_.gpu_spans()->host_only_spans() : 0);
  recorder_.header().host_only_spans.store(static_cast<std::uint32_t>(host_only_spans), std::memory_order_relaxed);
  recorder_.header().overwritten_comm_ops.store(comm_.overwritten_ops(), std::memory_order_relaxed);
  say_losses(read_losses(recorder_.header(), ""));
  say_full_names();
  sink_.check_exists();
  if (!sink_.file().is_on()) {
    say_error();
    return;
  }
  std::string packets;
  const ClockReading reading = read_clock();
  append_clock_snapshot(packets, {reading.ticks, reading.monotonic_ns, reading.realtime_ns, reading.width_ns});
  comm_.append_state(packets, reading.monotonic_ns, everything);
  TraceLosses losses = read_losses(recorder_.header(), sink_.file().error());
  if (everything || losses != written_losses_) {
    append_losses(packets, losses);
    written_losses_ = std::move(losses);
  }
  TraceRecorderCost total;
  total.drain_cpu_ns = thread_.cpu_ns();
  {
    const std::lock_guard lock(mutex_);
    if (reporter_ != nullptr) total.reporter_cpu_ns = reporter_->cpu_ns();
    if (watchdog_ != nullptr) total.watchdog_cpu_ns = watchdog_->cpu_ns();
  }
  total.span_count = written_spans_;
  total.file_bytes = sink_.file().total_bytes();
  TraceRecorderCost cost;
  cost.drain_cpu_ns = total.drain_cpu_ns - written_cost_.drain_cpu_ns;
  cost.reporter_cpu_ns = total.reporter_cpu_ns - written_cost_.reporter_cpu_ns;
  cost.watchdog_cpu_ns = total.watchdog_cpu_ns - written_cost_.watchdog_cpu_ns;
  cost.span_count = total.span_count - written_cost_.span_count;
  cost.file_bytes = total.file_bytes - written_cost_.file_bytes;
  cost.sampled_step_mean_ns = std::exchange(sampled_since_, {}).mean();
  cost.unsampled_step_mean_ns = std::exchange(unsampled_since_, {}).mean();
  if (const std::optional<Overhead> overhead = overhead_.get()) {
    cost.overhead_ratio = overhead->ratio;
    cost.overhead_low_ratio = overhead->low_ratio;
  }
  total.event_queries = resolver_.query_count();
  cost.event_queries = total.event_queries - written_cost_.event_queries;
  cost.longest_event_lag_ns = static_cast<std::uint64_t>(resolver_.take_longest_lag_ns());
  written_cost_ = total;
  append_recorder_cost(packets, cost);
  sink_.write(packets);
}

void Drain::publish() {
  if (const std::uint64_t removed = sink_.take_removed_spans(); removed != 0) {
    written_spans_ -= removed;
    recorder_.header().losses.unwritten_spans.fetch_add(removed, std::memory_order_relaxed);
  }
  const std::lock_guard lock(mutex_);
  if (settled_path_ != sink_.file().path()) {
    settled_path_ = sink_.file().path();
    recorder_.header().settled_bytes.store(0, std::memory_order_release);
    recorder_.arena().set_trace_file(settled_path_);
  }
  status_.written_spans = written_spans_;
  status_.file_bytes = sink_.file().total_bytes();
  status_.sampled_step_mean_ns = sampled_.mean();
  status_.unsampled_step_mean_ns = unsampled_.mean();
  status_.file_path = sink_.file().path();
  status_.file_error = sink_.file().error();
}

}  // namespace smon_rt
