// The C interface of checkpoints in memory: each smon_checkpoint function, over Checkpoint. Nothing is thrown across
// it.

#include "checkpoint/checkpoint.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "api/c_interface.h"
#include "api/environment.h"
#include "api/gpu.h"
#include "api/runtime.h"
#include "api/smon_rt.h"
#include "base/dynamic_library.h"
#include "base/log.h"
#include "base/process_state.h"
#include "checkpoint/agent_folder.h"

struct smon_checkpoint {
  smon_rt::Checkpoint* checkpoint;
  std::uint32_t fork_count;  // in a forked child everything is inert: locks may be held by threads it does not have
};

namespace smon_rt {
namespace {

// For the fork handler, which may only close: the descriptors of the parent keep its agent's memory alive.
constinit std::atomic<Checkpoint*> g_checkpoint{nullptr};

void close_in_child() {
  if (Checkpoint* checkpoint = g_checkpoint.exchange(nullptr)) checkpoint->close_in_child();
}

smon_result fail(const std::string& message, smon_result result = SMON_UNAVAILABLE) {
  return Runtime::get().fail(result, message);
}

smon_result to_result(const Result<void>& result) {
  return result ? SMON_OK : fail(result.error().message);
}

/// Calls function(checkpoint) if there is one, of this process.
template <typename Function>
smon_result with(const smon_checkpoint* handle, Function&& function) noexcept {
  return guarded_result([&]() -> smon_result {
    if (handle == nullptr) return fail("smon_checkpoint: NULL", SMON_INVALID_ARGUMENT);
    if (handle->fork_count != fork_count()) return SMON_NOT_STARTED;
    return function(*handle->checkpoint);
  });
}

Checkpoint* usable(const smon_checkpoint* handle) {
  return handle == nullptr || handle->fork_count != fork_count() ? nullptr : handle->checkpoint;
}

Label to_label(const smon_label& label) {
  return {label.incarnation, label.step};
}

smon_label from_label(const Label& label) {
  return {label.incarnation, label.step};
}

/// In python/smon_rt/bin of a wheel, whose library is in python/smon_rt/lib; else beside the library.
std::string agent_program() {
  const std::string library = library_path_of(reinterpret_cast<const void*>(&smon_checkpoint_open));
  const std::string folder = library.substr(0, library.find_last_of('/') + 1);
  const std::string in_wheel = folder + "../bin/smon-agent";
  return ::access(in_wheel.c_str(), X_OK) == 0 ? in_wheel : folder + "smon-agent";
}

std::string text_or(const char* text, std::string otherwise) {
  return text != nullptr ? std::string(text) : std::move(otherwise);
}

std::uint32_t at_least(std::int32_t number, std::int32_t least) {
  return static_cast<std::uint32_t>(std::max(number, least));
}

/// More threads than some cores' worth of a socket's bandwidth gain nothing, and take cores from the job.
std::size_t copy_threads(std::int32_t given) {
  if (given > 0) return static_cast<std::size_t>(std::min(given, 64));
  return std::clamp<std::size_t>(std::thread::hardware_concurrency() / 4, 1, 4);
}

CheckpointOptions to_options(const smon_checkpoint_config& config, const Environment& environment) {
  CheckpointOptions options;
  agent_messages::Hello& hello = options.client.hello;
  hello.run_id = text_or(config.run_id, environment.run_id.value_or("run"));
  hello.rank = config.rank >= 0 ? config.rank : environment.rank.value_or(0);
  hello.world_size = config.world_size > 0 ? config.world_size : environment.world_size.value_or(1);
  hello.owner = text_or(config.owner, "rank=" + std::to_string(hello.rank));
  hello.topology = text_or(config.topology, "");
  hello.attempt = text_or(config.attempt, "");
  hello.every = at_least(config.every, 1);
  hello.own_slots = static_cast<std::uint32_t>(std::clamp(config.own_slots, 2, 3));
  hello.pid = static_cast<std::int32_t>(::getpid());
  hello.disk_dir = text_or(config.disk_dir, "");
  hello.disk_every = at_least(config.disk_every, 1);
  hello.disk_keep = at_least(config.disk_keep, 1);
  hello.agent_ttl_s = config.agent_ttl_s < 0 ? 600 : static_cast<std::uint32_t>(config.agent_ttl_s);
  const std::string base = text_or(config.agent_dir, environment.agent_dir.value_or("/tmp"));
  options.client.folder = agent_folder_path(base, ::geteuid(), hello.run_id, environment.node.value_or(""));
  options.client.program = text_or(config.agent_program, agent_program());
  options.capture.copy_threads = copy_threads(config.copy_threads);
  const double timeout_s = config.timeout_s > 0 && std::isfinite(config.timeout_s) ? config.timeout_s : 30;
  options.timeout = std::chrono::nanoseconds(static_cast<std::int64_t>(std::min(timeout_s, 86400.0) * 1e9));
  return options;
}

smon_result open(const smon_checkpoint_config& config, smon_checkpoint** handle, std::uint32_t* incarnation) {
  const Environment environment = read_environment();
  if (environment.is_disabled) return SMON_DISABLED;
  if (g_checkpoint.load() != nullptr) return fail("a checkpoint is open already", SMON_ALREADY_STARTED);
  static const bool is_watching = at_fork_in_child(&close_in_child);
  if (!is_watching) log(LogLevel::kWarning, "checkpoint: forked children will keep its memory alive");
  std::string no_gpu;
  auto checkpoint = std::make_unique<Checkpoint>(to_options(config, environment), find_gpu_copier(no_gpu));
  Checkpoint* none = nullptr;
  if (!g_checkpoint.compare_exchange_strong(none, checkpoint.get())) {
    return fail("a checkpoint is open already", SMON_ALREADY_STARTED);
  }
  auto welcome = checkpoint->open();
  if (!welcome) {
    g_checkpoint.store(nullptr);
    if (!checkpoint->close(false)) (void)checkpoint.release();  // a thread is still inside: leaked
    return fail(welcome.error().message);
  }
  if (incarnation != nullptr) *incarnation = welcome->incarnation;
  *handle = new smon_checkpoint{checkpoint.release(), fork_count()};
  return SMON_OK;
}

void fill_copy(smon_checkpoint_copy& to, const agent_messages::HeldCopy& from) {
  to = {};
  to.label = from_label(from.label);
  to.tier = static_cast<std::int32_t>(from.tier);
  to.is_intact = from.is_intact ? 1 : 0;
  to.is_tried = from.is_tried ? 1 : 0;
  to.content_bytes = from.content_bytes;
  to.content_hash = from.content_hash;
  copy_text(to.owner, from.owner);
  copy_text(to.topology, from.topology);
  copy_text(to.reason, from.reason);
}

void fill_status(smon_checkpoint_status& to, const CheckpointStatus& from) {
  to.is_connected = from.is_connected ? 1 : 0;
  const auto set = [](const std::optional<Label>& label, smon_label& value, std::int32_t& has) {
    value = from_label(label.value_or(kInitialState));
    has = label.has_value() ? 1 : 0;
  };
  set(from.promised, to.promised, to.has_promised);
  set(from.copied, to.copied, to.has_copied);
  set(from.agreed, to.agreed, to.has_agreed);
  set(from.durable, to.durable, to.has_durable);
  to.captures = from.captures;
  to.skips = from.skips;
  to.content_bytes = from.content_bytes;
  to.copied_bytes = from.copied_bytes;
  to.copy_ns = from.copy_ns;
  to.blocked_ns = from.blocked_ns;
  to.last_blocked_ns = from.last_blocked_ns;
  to.gpu_wait_ns = from.gpu_wait_ns;
  to.job_skips = from.job_skips;
  copy_text(to.last_skip, from.last_skip);
  copy_text(to.error, from.error);
  copy_text(to.agent, from.agent);
}

static_assert(SMON_CAPTURE_BEGUN == static_cast<int>(CaptureResult::kBegun));
static_assert(SMON_CAPTURE_NOT_DUE == static_cast<int>(CaptureResult::kNotDue));
static_assert(SMON_CAPTURE_SKIPPED == static_cast<int>(CaptureResult::kSkipped));

}  // namespace
}  // namespace smon_rt

using smon_rt::Checkpoint;
using smon_rt::fail;
using smon_rt::guarded_result;
using smon_rt::to_result;
using smon_rt::usable;
using smon_rt::with;

extern "C" {

void smon_checkpoint_config_init(smon_checkpoint_config* config) {
  if (config == nullptr) return;
  *config = {};
  config->struct_size = sizeof *config;
  config->rank = -1;
  config->world_size = -1;
  config->every = 1;
  config->own_slots = 2;
  config->disk_every = 1;
  config->disk_keep = 2;
  config->agent_ttl_s = -1;
}

smon_result smon_checkpoint_open(const smon_checkpoint_config* config, smon_checkpoint** checkpoint,
                                 uint32_t* incarnation) {
  return guarded_result([&]() -> smon_result {
    if (config == nullptr || config->struct_size < sizeof(std::size_t) || checkpoint == nullptr) {
      return fail("smon_checkpoint_open: config is NULL or without its struct_size", SMON_INVALID_ARGUMENT);
    }
    smon_checkpoint_config copy;
    smon_checkpoint_config_init(&copy);
    std::memcpy(&copy, config, std::min(config->struct_size, sizeof copy));
    return smon_rt::open(copy, checkpoint, incarnation);
  });
}

void smon_checkpoint_close(smon_checkpoint* checkpoint, int32_t job_is_over) {
  (void)with(checkpoint, [&](Checkpoint& open) {
    smon_rt::g_checkpoint.store(nullptr);
    const bool has_ended = open.close(job_is_over != 0);
    if (has_ended) delete &open;
    delete checkpoint;
    return SMON_OK;
  });
}

smon_result smon_checkpoint_fence(smon_checkpoint* checkpoint, uint32_t incarnation) {
  return with(checkpoint, [&](Checkpoint& open) { return to_result(open.fence(incarnation)); });
}

smon_result smon_checkpoint_list(smon_checkpoint* checkpoint, smon_checkpoint_copy* copies, size_t capacity,
                                 size_t* count) {
  return with(checkpoint, [&](Checkpoint& open) -> smon_result {
    if (count == nullptr || (copies == nullptr && capacity != 0)) {
      return fail("smon_checkpoint_list: copies or count is NULL", SMON_INVALID_ARGUMENT);
    }
    const auto listed = open.list();
    if (!listed) return fail(listed.error().message);
    for (std::size_t i = 0; i < std::min(capacity, listed->size()); ++i) smon_rt::fill_copy(copies[i], (*listed)[i]);
    *count = listed->size();
    return SMON_OK;
  });
}

smon_result smon_checkpoint_pin(smon_checkpoint* checkpoint, smon_label label, const smon_label* kept,
                                size_t kept_count) {
  return with(checkpoint, [&](Checkpoint& open) {
    std::vector<smon_rt::Label> labels;
    for (std::size_t i = 0; kept != nullptr && i < kept_count; ++i) labels.push_back(smon_rt::to_label(kept[i]));
    return to_result(open.pin(smon_rt::to_label(label), std::move(labels)));
  });
}

smon_result smon_checkpoint_fetch(smon_checkpoint* checkpoint, smon_label label, int32_t tier, const void** content,
                                  size_t* content_bytes) {
  return with(checkpoint, [&](Checkpoint& open) -> smon_result {
    using smon_rt::agent_messages::Tier;
    if (content == nullptr || content_bytes == nullptr || (tier != 1 && tier != 2)) {
      return fail("smon_checkpoint_fetch: content is NULL, or there is no such tier", SMON_INVALID_ARGUMENT);
    }
    const auto fetched = open.fetch(smon_rt::to_label(label), tier == 1 ? Tier::kMemory : Tier::kDisk);
    if (!fetched) return fail(fetched.error().message);
    *content = fetched->data();
    *content_bytes = fetched->size();
    return SMON_OK;
  });
}

void smon_checkpoint_release(smon_checkpoint* checkpoint) {
  (void)with(checkpoint, [](Checkpoint& open) {
    open.release();
    return SMON_OK;
  });
}

smon_result smon_checkpoint_go_on(smon_checkpoint* checkpoint, uint32_t incarnation, uint64_t next_step) {
  return with(checkpoint, [&](Checkpoint& open) { return to_result(open.go_on(incarnation, next_step)); });
}

smon_result smon_checkpoint_reject(smon_checkpoint* checkpoint, smon_label label, const char* reason) {
  return with(checkpoint, [&](Checkpoint& open) {
    return to_result(open.reject(smon_rt::to_label(label), reason != nullptr ? reason : ""));
  });
}

smon_result smon_checkpoint_set_layout(smon_checkpoint* checkpoint, const void* header, size_t header_bytes,
                                       const smon_tensor_range* ranges, size_t range_count) {
  return with(checkpoint, [&](Checkpoint& open) -> smon_result {
    if ((header == nullptr && header_bytes != 0) || (ranges == nullptr && range_count != 0)) {
      return fail("smon_checkpoint_set_layout: header or ranges is NULL", SMON_INVALID_ARGUMENT);
    }
    std::vector<smon_rt::CaptureRange> copied(range_count);
    for (std::size_t i = 0; i < range_count; ++i) {
      const smon_tensor_range& range = ranges[i];
      copied[i] = {range.offset, range.bytes, range.address, range.device, range.is_volatile != 0};
    }
    return to_result(open.set_layout({static_cast<const std::byte*>(header), header_bytes}, copied));
  });
}

smon_capture smon_checkpoint_capture(smon_checkpoint* checkpoint, uint64_t step, const uint64_t* addresses,
                                     uint64_t stream) {
  Checkpoint* open = usable(checkpoint);
  if (open == nullptr) return SMON_CAPTURE_SKIPPED;
  if (!open->is_due(step)) return SMON_CAPTURE_NOT_DUE;
  const smon_token span = smon_begin(SMON_CHECKPOINT_SNAPSHOT, nullptr);
  smon_capture result = SMON_CAPTURE_SKIPPED;
  (void)guarded_result([&] {
    result = static_cast<smon_capture>(open->capture(step, open->addresses(addresses), stream));
    return SMON_OK;
  });
  smon_end(span);
  return result;
}

void smon_checkpoint_before_update(smon_checkpoint* checkpoint, uint64_t stream) {
  Checkpoint* open = usable(checkpoint);
  if (open == nullptr || !open->is_copying()) return;
  const smon_token span = smon_begin(SMON_CHECKPOINT_WAIT, nullptr);
  (void)guarded_result([&] {
    open->before_update(stream);
    return SMON_OK;
  });
  smon_end(span);
}

void smon_checkpoint_status_read(smon_checkpoint* checkpoint, smon_checkpoint_status* status) {
  (void)with(checkpoint, [&](Checkpoint& open) -> smon_result {
    if (status == nullptr || status->struct_size < sizeof(std::size_t)) return SMON_INVALID_ARGUMENT;
    smon_checkpoint_status filled{};
    filled.struct_size = status->struct_size;
    smon_rt::fill_status(filled, open.status());
    std::memcpy(status, &filled, std::min(status->struct_size, sizeof filled));
    return SMON_OK;
  });
}

}  // extern "C"
