#include "record/reporter.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "format/trace_encoder.h"
#include "record/open_for_writing.h"
#include "record/trace_file.h"
#include "record/trace_sink.h"

namespace smon_rt {
namespace {

std::string error_text(int code) {
  return std::error_code(code, std::generic_category()).message();
}

/// The whole of a small file; nothing if it is not there or too large to be what we look for.
std::optional<std::string> read_small_file(const std::string& path) {
  // Nonblocking: somebody may have put a pipe there.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::string text(kMaxRequestBytes + 1, '\0');
  struct stat status{};
  ssize_t size = -1;
  if (::fstat(fd, &status) == 0 && S_ISREG(status.st_mode)) size = ::read(fd, text.data(), text.size());
  ::close(fd);
  if (size < 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(size));
  return text;
}

/// Whoever reads the file sees the old content or the new one.
Result<void> replace_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + "." + std::to_string(::getpid()) + ".tmp";
  const int fd = open_for_writing(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0666);
  int error_number = fd < 0 ? errno : 0;
  while (fd >= 0 && !content.empty()) {
    const ssize_t count = ::write(fd, content.data(), content.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      error_number = count < 0 ? errno : ENOSPC;
      break;
    }
    content.remove_prefix(static_cast<std::size_t>(count));
  }
  if (fd >= 0 && ::close(fd) != 0 && error_number == 0) error_number = errno;
  if (error_number == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) error_number = errno;
  if (error_number == 0) return {};
  if (fd >= 0) ::unlink(temporary.c_str());
  return Error{"cannot write " + path + ": " + error_text(error_number)};
}

void warn(LogLimiter& limiter, std::string_view message) {
  if (limiter.may_log(monotonic_ns())) log(LogLevel::kWarning, message);
}

}  // namespace

Reporter::Reporter(Recorder& recorder, const Drain& drain, ReporterOptions options)
    : recorder_(recorder),
      drain_(drain),
      options_(std::move(options)),
      snapshot_path_(options_.directory + "/" + trace_file_stem(options_.run_id, options_.attempt, options_.rank) +
                     ".live"),
      request_path_(options_.directory + "/request.json") {
  clock_.add(recorder_.clock().read());  // a single reading has no slope: run() takes the second
}

Result<void> Reporter::start() {
  if (options_.directory.empty()) return {};
  // What lies there from before belongs to a job that is gone. Looked at here: what is asked for once start() has
  // returned must not be taken for it, however late the thread begins.
  seen_request_ = read_small_file(request_path_);
  return thread_.start([this] { run(); });
}

void Reporter::set_identity(TraceIdentity identity) {
  const std::lock_guard lock(mutex_);
  identity_ = std::move(identity);
}

void Reporter::publish_request(const SamplingRequest& request) {
  if (options_.directory.empty()) return;
  {
    const std::lock_guard lock(mutex_);
    to_publish_ = request;
  }
  thread_.wake();
}

Reporter::Counters Reporter::counters() const {
  return {snapshots_.load(std::memory_order_relaxed), failed_snapshots_.load(std::memory_order_relaxed),
          accepted_requests_.load(std::memory_order_relaxed), malformed_requests_.load(std::memory_order_relaxed)};
}

void Reporter::run() {
  std::int64_t next_snapshot_ns = monotonic_ns();
  while (!thread_.is_stop_requested()) {
    const std::int64_t now_ns = monotonic_ns();
    recorder_.header().reporter_beat_ns.store(now_ns, std::memory_order_relaxed);
    clock_.add(recorder_.clock().read());
    write_published_request();
    look_for_request();
    if (now_ns >= next_snapshot_ns) {
      write_snapshot(now_ns);
      next_snapshot_ns = now_ns + options_.snapshot_every.count();
    }
    const std::int64_t until_ns = std::min(next_snapshot_ns, now_ns + options_.requests_every.count());
    // A wake-up of before may be what the wait returns for: the request that it was for is written already.
    while (!thread_.is_stop_requested() && !has_request_to_publish()) {
      const std::int64_t left_ns = until_ns - monotonic_ns();
      if (left_ns <= 0) break;
      thread_.wait_for(std::chrono::nanoseconds(left_ns));
    }
  }
  ::unlink(snapshot_path_.c_str());
}

void Reporter::write_snapshot(std::int64_t now_ns) {
  if (Result<void> written = replace_file(snapshot_path_, encode_snapshot(now_ns)); !written) {
    failed_snapshots_.fetch_add(1, std::memory_order_relaxed);
    warn(snapshot_limiter_, written.error().message);
    return;
  }
  snapshots_.fetch_add(1, std::memory_order_relaxed);
}

std::string Reporter::encode_snapshot(std::int64_t now_ns) {
  std::string packets;
  {
    const std::lock_guard lock(mutex_);
    append_identity(packets, identity_);
  }
  // Before the names: a span's names are interned before it begins.
  std::vector<Span> spans = read_open_spans(recorder_.arena(), clock_, now_ns, UnsampledSpans::kFromStepStart);
  const ArenaHeader& header = recorder_.header();
  const std::int64_t step = header.step.load(std::memory_order_relaxed);
  if (step >= 0) {
    Span span;
    span.kind = Kind::kStep;
    span.step = static_cast<std::uint32_t>(step);
    span.start = std::min(clock_.to_monotonic_ns(header.step_start_ticks.load(std::memory_order_relaxed)), now_ns);
    span.end = now_ns;
    span.flags = span_flag::kAborted;
    spans.insert(spans.begin(), span);
  }
  append_names(packets, TraceSink::all_names(recorder_.interner()));
  const ClockReading reading = recorder_.clock().read();
  append_clock_snapshot(packets, {reading.ticks, reading.monotonic_ns, reading.realtime_ns, reading.width_ns});
  append_losses(packets, read_losses(header, drain_.status().file_error));
  append_spans(packets, kOpenSpansRing, 0, spans);
  append_end(packets, "snapshot");
  return packets;
}

bool Reporter::has_request_to_publish() const {
  const std::lock_guard lock(mutex_);
  return to_publish_.has_value();
}

void Reporter::write_published_request() {
  std::optional<SamplingRequest> request;
  {
    const std::lock_guard lock(mutex_);
    request = std::exchange(to_publish_, std::nullopt);
  }
  if (!request) return;
  request->run_id = options_.run_id;  // other runs may record into the same directory
  const std::string text = encode_sampling_request(*request);
  if (Result<void> written = replace_file(request_path_, text); !written) {
    warn(request_limiter_, written.error().message + ": other ranks will not hear of it");
    return;
  }
  seen_request_ = text;  // this rank has it already
}

void Reporter::look_for_request() {
  std::optional<std::string> text = read_small_file(request_path_);
  if (!text || text == seen_request_) return;
  take_request(*text);
  seen_request_ = std::move(text);
}

void Reporter::take_request(const std::string& text) {
  const Result<SamplingRequest> request = parse_sampling_request(text);
  if (!request) {
    malformed_requests_.fetch_add(1, std::memory_order_relaxed);
    warn(request_limiter_, options_.directory + ": " + request.error().message);
    return;
  }
  if (!request->run_id.empty() && request->run_id != options_.run_id) return;
  const std::string window =
      "request for " + std::to_string(request->step_count) + " steps from " + std::to_string(request->first_step);
  switch (recorder_.sampling().request(request->first_step, request->step_count)) {
    case Sampling::RequestResult::kAccepted:
      accepted_requests_.fetch_add(1, std::memory_order_relaxed);
      log(LogLevel::kInfo, window + ": they will be recorded");
      break;
    case Sampling::RequestResult::kLate:
    case Sampling::RequestResult::kFull:
      recorder_.header().losses.late_requests.fetch_add(1, std::memory_order_relaxed);
      log(LogLevel::kInfo, window + ": too late here, or too many at once");
      break;
    case Sampling::RequestResult::kInvalid:
      malformed_requests_.fetch_add(1, std::memory_order_relaxed);
      log(LogLevel::kInfo, window + ": there are no such steps");
      break;
  }
}

}  // namespace smon_rt
