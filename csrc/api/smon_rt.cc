// The C interface: each function of smon_rt.h, over the Runtime. Nothing is thrown across it.

#include "api/smon_rt.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include "api/c_interface.h"
#include "api/runtime.h"
#include "api/version.h"
#include "format/kind.h"
#include "record/recorder.h"

namespace smon_rt {
namespace {

static_assert(SMON_KIND_COUNT == kKindCount && SMON_USER == static_cast<int>(Kind::kUser));
static_assert(SMON_TIME_WAIT_EVENT == static_cast<int>(TimeSource::kWaitEvent));
static_assert(SMON_TIME_WAIT_RETURN == static_cast<int>(TimeSource::kWaitReturn));
static_assert(SMON_FORWARD_SEND == static_cast<int>(Kind::kForwardSend));
static_assert(SMON_OPTIMIZER == static_cast<int>(Kind::kOptimizer));
// The hot path takes the caller's structure as it is.
static_assert(sizeof(smon_span_ids) == sizeof(SpanIds) && alignof(smon_span_ids) == alignof(SpanIds));
static_assert(offsetof(smon_span_ids, microbatch) == offsetof(SpanIds, microbatch));
static_assert(offsetof(smon_span_ids, name_id) == offsetof(SpanIds, name_id));
static_assert(offsetof(smon_span_ids, comm_id) == offsetof(SpanIds, comm_id));
static_assert(offsetof(smon_span_ids, peer) == offsetof(SpanIds, peer));
static_assert(offsetof(smon_span_ids, comm_seq) == offsetof(SpanIds, comm_seq));
static_assert(offsetof(smon_span_ids, payload_bytes) == offsetof(SpanIds, payload_bytes));
static_assert(offsetof(smon_span_ids, track_id) == offsetof(SpanIds, track_id));
static_assert(offsetof(smon_span_ids, flags) == offsetof(SpanIds, flags));

constexpr SpanIds kNoIds;

/// Not copied: a copy reads in wide words what the caller has just written in narrow ones, and would have to wait.
const SpanIds& to_ids(const smon_span_ids* ids) {
  return ids == nullptr ? kNoIds : *reinterpret_cast<const SpanIds*>(ids);
}

}  // namespace
}  // namespace smon_rt

using smon_rt::guarded;
using smon_rt::guarded_result;
using smon_rt::Recorder;
using smon_rt::Runtime;

extern "C" {

void smon_config_init(smon_config* config) {
  if (config == nullptr) return;
  *config = {};
  config->struct_size = sizeof *config;
  config->attempt = -1;
  config->rank = -1;
  config->world_size = -1;
  config->local_rank = -1;
  config->sample_ratio = -1;
  config->warmup_steps = -1;
  config->always_steps = -1;
  config->nccl_detail = -1;
}

smon_result smon_start(const smon_config* config) {
  return guarded_result([&] { return Runtime::get().start(config); });
}

smon_result smon_stop(void) {
  return guarded_result([] { return Runtime::get().stop(); });
}

const char* smon_last_error(void) {
  return guarded<const char*>("smon_rt: no memory", [] { return Runtime::get().last_error(); });
}

smon_result smon_set_layout(const smon_layout* layout) {
  return guarded_result([&] {
    if (layout == nullptr || layout->struct_size < sizeof(std::size_t)) {
      return Runtime::get().fail(SMON_INVALID_ARGUMENT, "smon_set_layout: layout is NULL or without its struct_size");
    }
    smon_layout copy = {};
    copy.dp_rank = copy.stage = copy.tp_rank = copy.cp_rank = copy.expert_dp_rank = -1;
    std::memcpy(&copy, layout, std::min(layout->struct_size, sizeof copy));
    return Runtime::get().set_layout(copy);
  });
}

smon_result smon_set_fact(const char* key, const char* value) {
  return guarded_result([&] {
    if (key == nullptr || value == nullptr) {
      return Runtime::get().fail(SMON_INVALID_ARGUMENT, "smon_set_fact: key and value must not be NULL");
    }
    return Runtime::get().set_fact(key, value);
  });
}

uint16_t smon_intern_name(const char* text) {
  if (text == nullptr) return 0;
  return guarded<uint16_t>(0, [&] {
    return Runtime::get().with_recorder([&](Recorder& recorder) {
      const std::uint16_t id = recorder.interner().name(text);
      if (id == 0) recorder.count_misuse();
      return id;
    });
  });
}

uint16_t smon_register_track(int32_t device, uint64_t stream) {
  return guarded<uint16_t>(0, [&] {
    return Runtime::get().with_recorder([&](Recorder& recorder) { return recorder.register_track(device, stream); });
  });
}

uint16_t smon_register_communicator(const char* name, const char* dimension, const int32_t* member_ranks,
                                    size_t member_count) {
  if (member_ranks == nullptr) member_count = 0;
  return guarded<uint16_t>(0, [&] {
    return Runtime::get().with_recorder([&](Recorder& recorder) {
      return recorder.register_communicator(name != nullptr ? name : "", dimension != nullptr ? dimension : "",
                                            {member_ranks, member_count});
    });
  });
}

void smon_set_stream_waits(uint16_t comm_id) {
  if (Recorder* recorder = Runtime::recorder()) recorder->set_stream_waits(comm_id);
}

void smon_step_begin(int64_t step) {
  if (!smon_rt::is_recording()) return;
  Recorder* recorder = Runtime::recorder();
  if (recorder == nullptr) return;
  recorder->step_begin(step);
  Runtime::step_begun(*recorder);
}

void smon_step_end(void) {
  if (!smon_rt::is_recording()) return;
  Recorder* recorder = Runtime::recorder();
  if (recorder == nullptr) return;
  recorder->step_end();
  Runtime::step_ended();
}

int smon_is_sampled(void) {
  if (!smon_rt::is_recording()) return 0;
  const Recorder* recorder = Runtime::recorder();
  return recorder != nullptr && recorder->is_sampled() ? 1 : 0;
}

smon_token smon_begin(smon_kind kind, const smon_span_ids* ids) {
  if (!smon_rt::is_recording()) return 0;
  Recorder* recorder = Runtime::recorder();
  if (recorder == nullptr) return 0;
  return recorder->begin_recording(static_cast<smon_rt::Kind>(kind), smon_rt::to_ids(ids));
}

void smon_end(smon_token token) {
  if (token == 0) return;
  if (Recorder* recorder = Runtime::recorder()) recorder->end(token);
}

void smon_abort(smon_token token) {
  if (token == 0) return;
  if (Recorder* recorder = Runtime::recorder()) recorder->abort(token);
}

void smon_end_at(smon_token token, int64_t ticks, smon_time_source source, uint16_t flags) {
  if (token == 0) return;
  // Any other number comes from a caller that knows more sources than we do: the host's clock is what it went by.
  const bool is_known = source == SMON_TIME_WAIT_RETURN || source == SMON_TIME_WAIT_EVENT;
  const auto known = is_known ? static_cast<smon_rt::TimeSource>(source) : smon_rt::TimeSource::kHost;
  if (Recorder* recorder = Runtime::recorder()) recorder->end_at(token, ticks, known, flags);
}

int64_t smon_mark_end(smon_token token) {
  Recorder* recorder = token == 0 ? nullptr : Runtime::recorder();
  return recorder != nullptr ? recorder->mark_end(token) : smon_ticks();
}

int64_t smon_ticks(void) {
  return smon_rt::Clock::host().ticks();
}

void smon_annotate(smon_token token, const smon_span_ids* ids) {
  if (token == 0 || ids == nullptr) return;
  if (Recorder* recorder = Runtime::recorder()) recorder->annotate(token, smon_rt::to_ids(ids));
}

smon_token smon_current(void) {
  if (!smon_rt::is_recording()) return 0;
  Recorder* recorder = Runtime::recorder();
  return recorder != nullptr ? recorder->current() : 0;
}

smon_token smon_find_open(uint32_t kinds) {
  if (!smon_rt::is_recording()) return 0;
  Recorder* recorder = Runtime::recorder();
  return recorder != nullptr ? recorder->find_open(kinds) : 0;
}

void smon_metric(uint16_t name_id, double value) {
  if (!smon_rt::is_recording()) return;
  if (Recorder* recorder = Runtime::recorder()) recorder->metric(name_id, value);
}

smon_result smon_request_sampling(int64_t first_step, int32_t step_count) {
  return guarded_result([&] { return Runtime::get().request_sampling(first_step, step_count); });
}

void smon_pause(void) {
  (void)guarded(0, [] {
    Runtime::get().pause();
    return 0;
  });
}

void smon_resume(void) {
  (void)guarded(0, [] {
    Runtime::get().resume();
    return 0;
  });
}

void smon_capture_begin(void) {
  Runtime::capture_begun();
}

void smon_capture_end(void) {
  Runtime::capture_ended();
}

void smon_status_read(smon_status* status) {
  if (status == nullptr || status->struct_size < sizeof(std::size_t)) return;
  (void)guarded(0, [&] {
    Runtime::get().read_status(*status);
    return 0;
  });
}

void smon_count_misuse(void) {
  if (!smon_rt::is_recording()) return;
  if (Recorder* recorder = Runtime::recorder()) recorder->count_misuse();
}

const char* smon_version(void) {
  return smon_rt::kVersion;
}

}  // extern "C"
