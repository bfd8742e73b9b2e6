// The Python module smon_rt._runtime: recording, over smon_rt.h alone. The recorder itself is in libsmon_rt.so, which
// NCCL and C++ programs meet too. What a step calls is in runtime_calls.cc and runtime_span.cc; here is what is called
// once. python/smon_rt/_runtime.pyi holds the types.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api/smon_rt.h"
#include "bindings/checkpoint_calls.h"
#include "bindings/hook_state.h"
#include "bindings/runtime_arguments.h"
#include "bindings/runtime_calls.h"
#include "bindings/step_calls.h"
#include "bindings/tensor_addresses.h"

namespace py = pybind11;

namespace smon_rt::bindings {
namespace {

const char* text_or_null(const std::optional<std::string>& text) {
  return text ? text->c_str() : nullptr;
}

int start(const std::optional<std::string>& trace_dir, const std::optional<std::string>& run_id, std::int32_t attempt,
          std::int32_t rank, std::int32_t world_size, std::int32_t local_rank, double sample_ratio,
          std::int32_t warmup_steps, std::int32_t always_steps, std::uint64_t max_file_bytes,
          std::int32_t nccl_detail) {
  smon_config config;
  smon_config_init(&config);
  config.trace_dir = text_or_null(trace_dir);
  config.run_id = text_or_null(run_id);
  config.attempt = attempt;
  config.rank = rank;
  config.world_size = world_size;
  config.local_rank = local_rank;
  config.sample_ratio = sample_ratio;
  config.warmup_steps = warmup_steps;
  config.always_steps = always_steps;
  config.max_file_bytes = max_file_bytes;
  config.nccl_detail = nccl_detail;
  begin_new_names();
  smon_result result;
  {
    py::gil_scoped_release no_gil;
    result = smon_start(&config);
  }
  end_new_names(result == SMON_OK || result == SMON_ALREADY_STARTED);
  return result;
}

int stop() {
  // From here on no thread waits for the recorder's lock with a new name, GIL in hand.
  begin_new_names();
  py::gil_scoped_release no_gil;
  return smon_stop();
}

int set_layout(std::int32_t dp_rank, std::int32_t stage, std::int32_t tp_rank, std::int32_t cp_rank,
               std::int32_t expert_dp_rank, std::int32_t dp_size, std::int32_t pp_size, std::int32_t tp_size,
               std::int32_t cp_size, std::int32_t vpp_size, std::int32_t microbatch_count,
               const std::optional<std::string>& schedule) {
  smon_layout layout = {};
  layout.struct_size = sizeof(layout);
  layout.dp_rank = dp_rank;
  layout.stage = stage;
  layout.tp_rank = tp_rank;
  layout.cp_rank = cp_rank;
  layout.expert_dp_rank = expert_dp_rank;
  layout.dp_size = dp_size;
  layout.pp_size = pp_size;
  layout.tp_size = tp_size;
  layout.cp_size = cp_size;
  layout.vpp_size = vpp_size;
  layout.microbatch_count = microbatch_count;
  layout.schedule = text_or_null(schedule);
  return smon_set_layout(&layout);
}

std::uint16_t register_communicator(const std::string& name, const std::string& dimension,
                                    const std::vector<std::int32_t>& member_ranks) {
  return smon_register_communicator(name.c_str(), dimension.c_str(), member_ranks.data(), member_ranks.size());
}

py::dict status() {
  smon_status status = {};
  status.struct_size = sizeof(status);
  smon_status_read(&status);
  py::dict dropped, result;
  for (std::size_t kind = 0; kind < SMON_KIND_COUNT; ++kind) {
    if (status.dropped_by_kind[kind] != 0) dropped[py::int_(kind)] = status.dropped_by_kind[kind];
  }
  result["is_started"] = status.is_started != 0;
  result["is_paused"] = status.is_paused != 0;
  result["step"] = status.step;
  result["recorded_spans"] = status.recorded_spans;
  result["written_spans"] = status.written_spans;
  result["dropped_spans"] = status.dropped_spans;
  result["dropped_by_kind"] = dropped;
  result["foreign_tokens"] = status.foreign_tokens;
  result["stale_tokens"] = status.stale_tokens;
  result["threads_without_ring"] = status.threads_without_ring;
  result["uncounted_sequences"] = status.uncounted_sequences;
  result["unwritten_spans"] = status.unwritten_spans;
  result["reclaimed_spans"] = status.reclaimed_spans;
  result["saturated_steps"] = status.saturated_steps;
  result["misused_calls"] = status.misused_calls;
  result["nccl_communicators"] = status.nccl_communicators;
  result["nccl_ops"] = status.nccl_ops;
  result["nccl_joined_ops"] = status.nccl_joined_ops;
  result["nccl_foreign_handles"] = status.nccl_foreign_handles;
  result["nccl_stale_handles"] = status.nccl_stale_handles;
  result["nccl_lost_ends"] = status.nccl_lost_ends;
  result["nccl_rejected_times"] = status.nccl_rejected_times;
  result["nccl_untracked"] = status.nccl_untracked;
  result["nccl_kernel_ops"] = status.nccl_kernel_ops;
  result["nccl_detail_refusal"] = py::str(status.nccl_detail_refusal);
  result["sampled_steps"] = status.sampled_steps;
  result["steps"] = status.steps;
  result["file_bytes"] = status.file_bytes;
  result["drain_cpu_ns"] = status.drain_cpu_ns;
  result["file_path"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(status.file_path));
  result["file_error"] = py::reinterpret_steal<py::str>(PyUnicode_DecodeFSDefault(status.file_error));
  return result;
}

void add_calls(py::module_& module) {
  if (!set_up_arguments() || !set_up_collectives(module.ptr()) || !set_up_pipelines()) throw py::error_already_set();
  for (PyMethodDef* calls : {runtime_calls(), collective_calls(), forward_calls(), pipeline_calls(), hook_state_calls(),
                             step_calls(), optimizer_calls(), pass_calls(), late_error_calls()}) {
    if (PyModule_AddFunctions(module.ptr(), calls) < 0) throw py::error_already_set();
  }
  const std::pair<const char*, PyObject*> objects[] = {
      {"span", make_span_type(module.ptr())},
      {"step", make_step_type(module.ptr())},
      {"switch", make_hook_state(module.ptr())},
      {"KIND_NAMES", kind_names()},
  };
  for (const auto& [name, object] : objects) {
    if (object == nullptr) throw py::error_already_set();
    module.attr(name) = py::reinterpret_steal<py::object>(object);
  }
  module.attr("HookState") = py::type::of(module.attr("switch"));
}

void add_results(py::module_& module) {
  module.attr("OK") = static_cast<int>(SMON_OK);
  module.attr("DISABLED") = static_cast<int>(SMON_DISABLED);
  module.attr("ALREADY_STARTED") = static_cast<int>(SMON_ALREADY_STARTED);
  module.attr("NOT_STARTED") = static_cast<int>(SMON_NOT_STARTED);
  module.attr("INVALID_ARGUMENT") = static_cast<int>(SMON_INVALID_ARGUMENT);
  module.attr("UNAVAILABLE") = static_cast<int>(SMON_UNAVAILABLE);
  module.attr("TIMED_OUT") = static_cast<int>(SMON_TIMED_OUT);
}

}  // namespace
}  // namespace smon_rt::bindings

PYBIND11_MODULE(_runtime_of_main_interpreter, module, py::mod_gil_not_used()) {
  using namespace smon_rt::bindings;  // NOLINT: the module's own namespace
  module.doc() = "The recorder of smon_rt, over the C interface of libsmon_rt.so.";
  add_calls(module);
  add_results(module);
  add_tensor_addresses(module);
  add_checkpoint_calls(module);
  const auto no_gil = py::call_guard<py::gil_scoped_release>();
  module.def("start", &start, py::kw_only(), py::arg("trace_dir"), py::arg("run_id"), py::arg("attempt"),
             py::arg("rank"), py::arg("world_size"), py::arg("local_rank"), py::arg("sample_ratio"),
             py::arg("warmup_steps"), py::arg("always_steps"), py::arg("max_file_bytes"), py::arg("nccl_detail"));
  module.def("stop", &stop);
  module.def("pause", &smon_pause, no_gil);
  module.def("capture_begin", &smon_capture_begin);
  module.def("capture_end", &smon_capture_end);
  module.def("resume", &smon_resume, no_gil);
  module.def("last_error", [] { return py::bytes(smon_last_error()).attr("decode")("utf-8", "replace"); });
  module.def("set_layout", &set_layout, py::kw_only(), py::arg("dp_rank"), py::arg("stage"), py::arg("tp_rank"),
             py::arg("cp_rank"), py::arg("expert_dp_rank"), py::arg("dp_size"), py::arg("pp_size"), py::arg("tp_size"),
             py::arg("cp_size"), py::arg("vpp_size"), py::arg("microbatch_count"), py::arg("schedule"));
  module.def(
      "set_fact",
      [](const std::string& key, const std::string& value) {
        return static_cast<int>(smon_set_fact(key.c_str(), value.c_str()));
      },
      py::arg("key"), py::arg("value"), no_gil);
  module.def("name_id", [](const py::str& name) { return name_id(name.ptr()); }, py::arg("name"));
  module.def("register_track", &smon_register_track, py::arg("device"), py::arg("stream"), no_gil);
  module.def("register_communicator", &register_communicator, py::arg("name"), py::arg("dimension"),
             py::arg("member_ranks"), no_gil);
  module.def("set_stream_waits", &smon_set_stream_waits, py::arg("comm_id"), no_gil);
  module.def(
      "request_sampling",
      [](std::int64_t first_step, std::int32_t step_count) {
        return static_cast<int>(smon_request_sampling(first_step, step_count));
      },
      py::arg("first_step"), py::arg("step_count"), no_gil);
  module.def("status", &status);
  module.def("version", [] { return std::string(smon_version()); });
  module.def(
      "set_misuse_handler", [](const py::object& handler) { set_misuse_handler(handler.inc_ref().ptr()); },
      py::arg("handler"));
}

// Globals of the process would be shared by interpreters that know nothing of each other. Asked before pybind11 sets
// itself up, which waits for its own GIL in a subinterpreter of Python 3.11.
extern "C" PYBIND11_EXPORT PyObject* PyInit__runtime() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__runtime_of_main_interpreter();
  PyErr_SetString(PyExc_ImportError, "smon_rt records in the main interpreter only, and this is a subinterpreter");
  return nullptr;
}
