#include "bindings/checkpoint_calls.h"

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "api/smon_rt.h"
#include "bindings/tensor_addresses.h"

namespace py = pybind11;

namespace smon_rt::bindings {
namespace {

using Label = std::pair<std::uint32_t, std::uint64_t>;
/// offset, bytes, address, device, is_volatile
using Range = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::int32_t, bool>;

smon_label to_c(const Label& label) {
  return smon_label{label.first, label.second};
}

py::object label_or_none(std::int32_t is_there, const smon_label& label) {
  if (is_there == 0) return py::none();
  return py::make_tuple(label.incarnation, label.step);
}

/// Text that may hold anything, as it came from elsewhere.
py::str text(const char* bytes) {
  return py::bytes(bytes).attr("decode")("utf-8", "replace");
}

/// Strings of a configuration, for as long as it is read.
class Texts {
 public:
  explicit Texts(const py::dict& values) : values_(values) {}

  /// nullptr: None.
  const char* find(const char* name) {
    const py::object value = values_[name];
    if (value.is_none()) return nullptr;
    return kept_.emplace_back(value.cast<std::string>()).c_str();
  }

 private:
  const py::dict& values_;
  std::vector<std::string> kept_ = reserved();

  // What find() returned must not move.
  static std::vector<std::string> reserved() {
    std::vector<std::string> texts;
    texts.reserve(16);
    return texts;
  }
};

class Checkpoint {
 public:
  Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  // Left open: a process that ends without close() may be one that is to come back.
  ~Checkpoint() { close(false); }

  std::pair<int, std::uint32_t> open(const py::dict& options) {
    if (handle_ != nullptr) return {SMON_ALREADY_STARTED, 0};
    smon_checkpoint_config config;
    smon_checkpoint_config_init(&config);
    Texts texts(options);
    config.run_id = texts.find("run_id");
    config.owner = texts.find("owner");
    config.topology = texts.find("topology");
    config.attempt = texts.find("attempt");
    config.disk_dir = texts.find("disk_dir");
    config.agent_program = texts.find("agent_program");
    config.agent_dir = texts.find("agent_dir");
    config.rank = options["rank"].cast<std::int32_t>();
    config.world_size = options["world_size"].cast<std::int32_t>();
    config.every = options["every"].cast<std::int32_t>();
    config.own_slots = options["own_slots"].cast<std::int32_t>();
    config.disk_every = options["disk_every"].cast<std::int32_t>();
    config.disk_keep = options["disk_keep"].cast<std::int32_t>();
    config.agent_ttl_s = options["agent_ttl_s"].cast<std::int32_t>();
    config.copy_threads = options["copy_threads"].cast<std::int32_t>();
    config.timeout_s = options["timeout_s"].cast<double>();
    std::uint32_t incarnation = 0;
    py::gil_scoped_release no_gil;
    const smon_result result = smon_checkpoint_open(&config, &handle_, &incarnation);
    return {result, incarnation};
  }

  void close(bool job_is_over) {
    if (handle_ == nullptr) return;
    py::gil_scoped_release no_gil;
    smon_checkpoint_close(std::exchange(handle_, nullptr), job_is_over ? 1 : 0);
  }

  int fence(std::uint32_t incarnation) {
    if (handle_ == nullptr) return SMON_NOT_STARTED;
    py::gil_scoped_release no_gil;
    return smon_checkpoint_fence(handle_, incarnation);
  }

  /// (label, tier, is_intact, is_tried, content_bytes, owner, topology, reason) of each.
  std::pair<int, py::list> list() {
    if (handle_ == nullptr) return {SMON_NOT_STARTED, py::list()};
    std::vector<smon_checkpoint_copy> copies(64);
    std::size_t count = 0;
    smon_result result;
    {
      py::gil_scoped_release no_gil;
      result = smon_checkpoint_list(handle_, copies.data(), copies.size(), &count);
      if (result == SMON_OK && count > copies.size()) {
        copies.resize(count);
        result = smon_checkpoint_list(handle_, copies.data(), copies.size(), &count);
      }
    }
    py::list listed;
    for (std::size_t at = 0; result == SMON_OK && at < count && at < copies.size(); ++at) {
      const smon_checkpoint_copy& copy = copies[at];
      listed.append(py::make_tuple(py::make_tuple(copy.label.incarnation, copy.label.step), copy.tier,
                                   copy.is_intact != 0, copy.is_tried != 0, copy.content_bytes, text(copy.owner),
                                   text(copy.topology), text(copy.reason)));
    }
    return {result, listed};
  }

  int pin(const Label& label, const std::vector<Label>& kept) {
    if (handle_ == nullptr) return SMON_NOT_STARTED;
    std::vector<smon_label> labels;
    labels.reserve(kept.size());
    for (const Label& one : kept) labels.push_back(to_c(one));
    py::gil_scoped_release no_gil;
    return smon_checkpoint_pin(handle_, to_c(label), labels.data(), labels.size());
  }

  /// The mapped content, or None; valid until release.
  std::pair<int, py::object> fetch(const Label& label, std::int32_t tier) {
    if (handle_ == nullptr) return {SMON_NOT_STARTED, py::none()};
    const void* content = nullptr;
    std::size_t content_bytes = 0;
    smon_result result;
    {
      py::gil_scoped_release no_gil;
      result = smon_checkpoint_fetch(handle_, to_c(label), tier, &content, &content_bytes);
    }
    if (result != SMON_OK) return {result, py::none()};
    return {result, py::memoryview::from_memory(content, static_cast<py::ssize_t>(content_bytes))};
  }

  void release() {
    if (handle_ != nullptr) smon_checkpoint_release(handle_);
  }

  int go_on(std::uint32_t incarnation, std::uint64_t next_step) {
    if (handle_ == nullptr) return SMON_NOT_STARTED;
    py::gil_scoped_release no_gil;
    return smon_checkpoint_go_on(handle_, incarnation, next_step);
  }

  int reject(const Label& label, const std::string& reason) {
    if (handle_ == nullptr) return SMON_NOT_STARTED;
    py::gil_scoped_release no_gil;
    return smon_checkpoint_reject(handle_, to_c(label), reason.c_str());
  }

  int set_layout(const py::bytes& header, const std::vector<Range>& ranges) {
    if (handle_ == nullptr) return SMON_NOT_STARTED;
    std::vector<smon_tensor_range> c_ranges;
    c_ranges.reserve(ranges.size());
    for (const auto& [offset, bytes, address, device, is_volatile] : ranges)
      c_ranges.push_back(smon_tensor_range{offset, bytes, address, device, is_volatile ? 1 : 0});
    const auto bytes = static_cast<std::string_view>(header);
    py::gil_scoped_release no_gil;
    return smon_checkpoint_set_layout(handle_, bytes.data(), bytes.size(), c_ranges.data(), c_ranges.size());
  }

  int capture(std::uint64_t step, const TensorAddresses& addresses, std::uint64_t stream) {
    if (handle_ == nullptr) return SMON_CAPTURE_SKIPPED;
    py::gil_scoped_release no_gil;
    return smon_checkpoint_capture(handle_, step, addresses.addresses().data(), stream);
  }

  void before_update(std::uint64_t stream) {
    if (handle_ == nullptr) return;
    py::gil_scoped_release no_gil;
    smon_checkpoint_before_update(handle_, stream);
  }

  py::dict status() {
    py::dict said;
    if (handle_ == nullptr) return said;
    smon_checkpoint_status status = {};
    status.struct_size = sizeof(status);
    {
      py::gil_scoped_release no_gil;
      smon_checkpoint_status_read(handle_, &status);
    }
    said["is_connected"] = status.is_connected != 0;
    said["promised"] = label_or_none(status.has_promised, status.promised);
    said["copied"] = label_or_none(status.has_copied, status.copied);
    said["agreed"] = label_or_none(status.has_agreed, status.agreed);
    said["durable"] = label_or_none(status.has_durable, status.durable);
    said["captures"] = status.captures;
    said["skips"] = status.skips;
    said["job_skips"] = status.job_skips;
    said["content_bytes"] = status.content_bytes;
    said["copied_bytes"] = status.copied_bytes;
    said["copy_ns"] = status.copy_ns;
    said["blocked_ns"] = status.blocked_ns;
    said["last_blocked_ns"] = status.last_blocked_ns;
    said["gpu_wait_ns"] = status.gpu_wait_ns;
    said["last_skip"] = text(status.last_skip);
    said["error"] = text(status.error);
    said["agent"] = text(status.agent);
    return said;
  }

 private:
  smon_checkpoint* handle_ = nullptr;
};

}  // namespace

void add_checkpoint_calls(py::module_& module) {
  py::class_<Checkpoint>(module, "Checkpoint")
      .def(py::init<>())
      .def("open", &Checkpoint::open, py::arg("options"))
      .def("close", &Checkpoint::close, py::arg("job_is_over"))
      .def("fence", &Checkpoint::fence, py::arg("incarnation"))
      .def("list", &Checkpoint::list)
      .def("pin", &Checkpoint::pin, py::arg("label"), py::arg("kept"))
      .def("fetch", &Checkpoint::fetch, py::arg("label"), py::arg("tier"))
      .def("release", &Checkpoint::release)
      .def("go_on", &Checkpoint::go_on, py::arg("incarnation"), py::arg("next_step"))
      .def("reject", &Checkpoint::reject, py::arg("label"), py::arg("reason"))
      .def("set_layout", &Checkpoint::set_layout, py::arg("header"), py::arg("ranges"))
      .def("capture", &Checkpoint::capture, py::arg("step"), py::arg("addresses"), py::arg("stream"))
      .def("before_update", &Checkpoint::before_update, py::arg("stream"))
      .def("status", &Checkpoint::status);
}

}  // namespace smon_rt::bindings
