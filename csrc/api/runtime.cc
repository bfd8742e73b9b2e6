#include "api/runtime.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "api/gpu.h"
#include "api/version.h"
#include "base/log.h"

namespace smon_rt {
namespace {

constexpr std::chrono::seconds kStopLimit{1};
constexpr std::size_t kMaxFacts = 1024;
constexpr std::size_t kMaxFactBytes = 4096;

std::int32_t given_or(std::int32_t value, std::optional<std::int32_t> from_environment, std::int32_t otherwise) {
  return value >= 0 ? value : from_environment.value_or(otherwise);
}

/// "" if there is nothing wrong.
std::string_view problem_of(const smon_config& config) {
  if (std::isnan(config.sample_ratio) || config.sample_ratio > 1) return "sample_ratio must be 0 to 1, or negative";
  if (config.world_size == 0) return "world_size must be 1 or more, or -1";
  return "";
}

}  // namespace

constinit std::atomic<Recorder*> Runtime::g_recorder{nullptr};
constinit std::atomic<Runtime*> Runtime::g_runtime{nullptr};
constinit std::atomic<nccl::Profiler*> Runtime::g_nccl_profiler{nullptr};

Runtime& Runtime::get() {
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  if (runtime != nullptr && runtime->fork_count_ == fork_count()) return *runtime;
  auto* made = new Runtime(runtime);
  // acquire and release: whoever sees the pointer sees the object.
  if (g_runtime.compare_exchange_strong(runtime, made, std::memory_order_acq_rel)) {
    static const int registered = std::atexit(&Runtime::on_exit);  // once a process; a forked child inherits it
    (void)registered;
    return *made;
  }
  delete made;
  return *runtime;
}

void Runtime::on_exit() {
  Runtime* runtime = g_runtime.load(std::memory_order_acquire);
  if (runtime == nullptr || runtime->fork_count_ != fork_count()) return;
  if (Session* session = runtime->running_.exchange(nullptr, std::memory_order_acq_rel)) {
    session->stop_at_exit(kStopLimit);
  }
}

smon_result Runtime::fail_locked(smon_result result, std::string_view message) {
  const std::size_t size = std::min(message.size(), last_error_.size() - 1);
  std::memcpy(last_error_.data(), message.data(), size);
  last_error_[size] = '\0';
  return result;
}

smon_result Runtime::fail(smon_result result, std::string_view message) {
  const std::lock_guard lock(mutex_);
  return fail_locked(result, message);
}

smon_result Runtime::start(const smon_config* given) {
  smon_config config;
  smon_config_init(&config);
  if (given != nullptr) {
    if (given->struct_size < sizeof(std::size_t)) {
      return fail(SMON_INVALID_ARGUMENT, "smon_start: set struct_size, by smon_config_init");
    }
    std::memcpy(&config, given, std::min(given->struct_size, sizeof config));
  }
  const Environment environment = read_environment();
  if (environment.log_level) set_log_level(*environment.log_level);
  for (const std::string& problem : environment.problems) log(LogLevel::kWarning, problem);
  if (const std::string_view problem = problem_of(config); !problem.empty()) {
    return fail(SMON_INVALID_ARGUMENT, "smon_start: " + std::string(problem));
  }
  const std::lock_guard lock(mutex_);
  const smon_result result = start_locked(config, environment);
  if (result == SMON_UNAVAILABLE) log(LogLevel::kError, std::string("not recording: ") + last_error_.data());
  return result;
}

bool Runtime::is_still_stopping() {
  if (stopping_ == nullptr) return false;
  if (!stopping_->has_ended()) return true;
  // Ended since: only what the job's threads may still be inside, the recorder, stays.
  stopping_->stop("stop", std::chrono::steady_clock::now() + kStopLimit);
  last_status_ = stopping_->read_status();
  retired_.push_back(&stopping_->recorder());
  stopping_.reset();
  return false;
}

smon_result Runtime::start_locked(const smon_config& config, const Environment& environment) {
  if (environment.is_disabled) return fail_locked(SMON_DISABLED, "SMON_RT_DISABLE is set: nothing is recorded");
  if (session_ != nullptr) return fail_locked(SMON_ALREADY_STARTED, "recording was started already: stop it first");
  if (is_still_stopping()) {
    return fail_locked(SMON_UNAVAILABLE, "the file system has not yet answered the last stop: try again later");
  }
  facts_.erase(std::string(kKernelTimesFact));  // of the recording before
  SessionOptions options = session_options(config, environment);
  options.gpu_timer = gpu_timer();
  options.find_comm_tracker = &Runtime::comm_tracker;
  auto session = Session::start(options);
  if (!session) return fail_locked(SMON_UNAVAILABLE, session.error().message);
  session_ = std::move(*session);
  is_paused_ = false;
  if (!session_->warning().empty()) {
    fail_locked(SMON_OK, session_->warning());
    log(LogLevel::kWarning, session_->warning());
  }
  log(LogLevel::kInfo, "recording into " + session_->drain().status().file_path);
  g_recorder.store(&session_->recorder(), std::memory_order_release);
  running_.store(session_.get(), std::memory_order_release);
  session_->recorder().resume();
  if (nccl::Profiler* profiler = wants_nccl_detail(config, environment) ? make_nccl_profiler() : nccl_profiler()) {
    profiler->want_kernels(wants_nccl_detail(config, environment));
  }
  set_nccl_depth(true);
  return SMON_OK;
}

GpuTimer* Runtime::gpu_timer() {
  if (!std::exchange(has_looked_for_gpu_, true)) {
    std::string reason;
    gpu_timer_ = find_gpu_timer(reason);
    if (gpu_timer_ == nullptr) log(LogLevel::kInfo, reason + "; spans have host times only");
  }
  return gpu_timer_.get();
}

SessionOptions Runtime::session_options(const smon_config& config, const Environment& environment) const {
  SessionOptions options;
  options.trace_dir = config.trace_dir != nullptr ? config.trace_dir : environment.trace_dir.value_or("");
  options.attempt = given_or(config.attempt, environment.attempt, -1);
  if (config.max_file_bytes != 0) options.max_file_bytes = config.max_file_bytes;
  SamplingOptions& sampling = options.sampling;
  if (config.sample_ratio >= 0) {
    sampling.sample_ratio = config.sample_ratio;
  } else if (environment.sample_ratio) {
    sampling.sample_ratio = *environment.sample_ratio;
  }
  sampling.warmup_steps = static_cast<std::uint32_t>(
      given_or(config.warmup_steps, environment.warmup_steps, static_cast<std::int32_t>(sampling.warmup_steps)));
  if (config.always_steps >= 0) sampling.always_steps = static_cast<std::uint32_t>(config.always_steps);
  TraceIdentity& identity = options.identity;
  const bool has_run_id = config.run_id != nullptr && *config.run_id != '\0';
  identity.run_id = has_run_id ? config.run_id : environment.run_id.value_or("run");
  identity.rank = given_or(config.rank, environment.rank, 0);
  identity.world_size = given_or(config.world_size, environment.world_size, 1);
  identity.local_rank = given_or(config.local_rank, environment.local_rank, 0);
  identity.versions["smon_rt"] = kVersion;
  identity.environment = environment.timing_variables;
  apply_facts(identity);
  return options;
}

void Runtime::apply_facts(TraceIdentity& identity) const {
  identity.layout = layout_;
  identity.hooks.clear();
  for (const auto& [key, value] : facts_) {
    const std::string name = key.substr(key.find('.') + 1);
    if (key.starts_with("version.")) identity.versions[name] = value;
    if (key.starts_with("env.")) identity.environment[name] = value;
    if (key.starts_with("hook.")) identity.hooks.push_back({name, value.empty(), value});
    if (key == "gpu_uuid") identity.gpu_uuid = value;
  }
}

smon_result Runtime::stop() {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) return fail_locked(SMON_NOT_STARTED, "recording was not started");
  if (running_.exchange(nullptr, std::memory_order_acq_rel) == nullptr) {
    return fail_locked(SMON_NOT_STARTED, "the process exits: recording has ended");
  }
  set_nccl_depth(false);
  note_nccl();
  const bool ended = session_->stop("stop", std::chrono::steady_clock::now() + kStopLimit);
  g_recorder.store(nullptr, std::memory_order_release);
  last_status_ = session_->read_status();
  if (ended) {
    const std::string loss = session_->loss();
    retired_.push_back(&session_->recorder());
    session_.reset();
    return loss.empty() ? SMON_OK : fail_locked(SMON_UNAVAILABLE, "not everything was written: " + loss);
  }
  stopping_ = std::move(session_);
  return fail_locked(SMON_TIMED_OUT, "the drain did not finish within a second: what was written is readable");
}

void Runtime::pause() {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr || is_paused_) return;
  is_paused_ = true;
  set_nccl_depth(false);
  session_->recorder().pause();
}

void Runtime::resume() {
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr || !is_paused_) return;
  if (running_.load(std::memory_order_acquire) == nullptr) return;  // the process exits
  is_paused_ = false;
  session_->recorder().resume();
  set_nccl_depth(true);
}

smon_result Runtime::set_layout(const smon_layout& layout) {
  // A dimension that is not used has size 1 and coordinate 0; a coordinate of a used one that is not known stays -1.
  const auto size = [](std::int32_t given) { return std::max(given, 1); };
  const auto coordinate = [](std::int32_t given, std::int32_t of) { return of <= 1 ? std::max(given, 0) : given; };
  TraceLayout made;
  made.dp_size = size(layout.dp_size);
  made.pp_size = size(layout.pp_size);
  made.tp_size = size(layout.tp_size);
  made.cp_size = size(layout.cp_size);
  made.vpp_size = size(layout.vpp_size);
  made.dp_rank = coordinate(layout.dp_rank, layout.dp_size);
  made.stage = coordinate(layout.stage, layout.pp_size);
  made.tp_rank = coordinate(layout.tp_rank, layout.tp_size);
  made.cp_rank = coordinate(layout.cp_rank, layout.cp_size);
  made.expert_dp_rank = std::max(layout.expert_dp_rank, 0);
  made.microbatch_count = std::max(layout.microbatch_count, 0);
  if (layout.schedule != nullptr) made.schedule = std::string_view(layout.schedule).substr(0, kMaxFactBytes);
  const std::lock_guard lock(mutex_);
  if (made == layout_) return SMON_OK;
  layout_ = std::move(made);
  if (session_ == nullptr) return SMON_OK;
  TraceIdentity identity = session_->identity();
  apply_facts(identity);
  session_->set_identity(identity);
  return SMON_OK;
}

smon_result Runtime::set_fact(std::string_view key, std::string_view value) {
  const bool is_known = key.starts_with("version.") || key.starts_with("env.") || key.starts_with("hook.");
  if ((!is_known && key != "gpu_uuid") || key.ends_with('.') || key.size() > kMaxFactBytes) {
    return fail(SMON_INVALID_ARGUMENT, "smon_set_fact: " + std::string(key.substr(0, 100)) +
                                           ": keys are version.NAME, env.NAME, hook.NAME and gpu_uuid");
  }
  value = value.substr(0, kMaxFactBytes);
  const std::lock_guard lock(mutex_);
  const auto known = facts_.find(key);
  if (known != facts_.end() && known->second == value) return SMON_OK;
  if (known == facts_.end() && facts_.size() >= kMaxFacts) {
    return fail_locked(SMON_UNAVAILABLE, "smon_set_fact: there are 1024 facts already");
  }
  facts_.insert_or_assign(std::string(key), std::string(value));
  if (session_ == nullptr) return SMON_OK;
  TraceIdentity identity = session_->identity();
  apply_facts(identity);
  session_->set_identity(identity);
  return SMON_OK;
}

smon_result Runtime::request_sampling(std::int64_t first_step, std::int32_t step_count) {
  if (step_count < 1 || step_count > kMaxRequestedSteps) {
    return fail(SMON_INVALID_ARGUMENT, "smon_request_sampling: step_count must be 1 to 10000");
  }
  const std::lock_guard lock(mutex_);
  if (session_ == nullptr) return fail_locked(SMON_NOT_STARTED, "recording was not started");
  Sampling& sampling = session_->recorder().sampling();
  if (first_step < 0) first_step = session_->soonest_shared_step();
  switch (sampling.request(first_step, step_count)) {
    case Sampling::RequestResult::kAccepted:
      if (first_step >= 0) {
        session_->reporter().publish_request({first_step, step_count, session_->identity().run_id});
      }
      return SMON_OK;
    case Sampling::RequestResult::kLate:
      return fail_locked(SMON_INVALID_ARGUMENT, "smon_request_sampling: that step has begun already");
    case Sampling::RequestResult::kFull:
      return fail_locked(SMON_UNAVAILABLE, "smon_request_sampling: too many windows are waiting already");
    case Sampling::RequestResult::kInvalid:
      break;
  }
  return fail_locked(SMON_INVALID_ARGUMENT, "smon_request_sampling: there is no such window of steps");
}

void Runtime::read_status(smon_status& status) {
  const std::size_t struct_size = std::min(status.struct_size, sizeof(smon_status));
  const std::lock_guard lock(mutex_);
  if (session_ != nullptr) last_status_ = session_->read_status();
  add_nccl_status(last_status_);
  last_status_.is_started = session_ != nullptr && running_.load(std::memory_order_acquire) != nullptr;
  last_status_.is_paused = last_status_.is_started != 0 && is_paused_;
  last_status_.struct_size = struct_size;
  std::memcpy(&status, &last_status_, struct_size);
}

}  // namespace smon_rt
