#include "api/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <type_traits>

namespace smon_rt {
namespace {

constexpr std::size_t kMaxTimingValueBytes = 256;
constexpr std::array kTimingVariables = {
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_ALGO",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "NCCL_P2P_DISABLE",
    "NCCL_PROFILER_PLUGIN",
    "NCCL_PROTO",
    "NCCL_SHM_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "NVTE_FUSED_ATTN",
    "OMP_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "TORCH_NCCL_AVOID_RECORD_STREAMS",
};

using LookUp = std::function<const char*(const char*)>;

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& c : result) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return result;
}

constexpr std::array<std::string_view, 4> kYes = {"1", "true", "yes", "on"};
constexpr std::array<std::string_view, 5> kNo = {"", "0", "false", "no", "off"};

template <std::size_t kCount>
bool is_one_of(const std::array<std::string_view, kCount>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), lower(word)) != words.end();
}

/// Reads variables and keeps what is wrong with them.
class Reader {
 public:
  Reader(const LookUp& look_up, std::vector<std::string>& problems) : look_up_(look_up), problems_(problems) {}

  std::optional<std::string> text(const char* name) const {
    const char* value = look_up_(name);
    if (value == nullptr || *value == '\0') return std::nullopt;
    return value;
  }

  template <typename Number>
  std::optional<Number> number(const char* name, Number least, Number most) const {
    const std::optional<std::string> value = text(name);
    if (!value) return std::nullopt;
    Number number{};
    const char* end = value->data() + value->size();
    const auto [read_to, error] = std::from_chars(value->data(), end, number);
    if (error == std::errc{} && read_to == end && number >= least && number <= most) return number;
    problems_.push_back(std::string(name) + "=" + *value + " is ignored: it must be a number" + range(least, most));
    return std::nullopt;
  }

 private:
  template <typename Number>
  static std::string range(Number least, Number most) {
    if constexpr (std::is_floating_point_v<Number>) {
      return " from " + std::to_string(static_cast<int>(least)) + " to " + std::to_string(static_cast<int>(most));
    } else if (most == std::numeric_limits<Number>::max()) {
      return ", " + std::to_string(least) + " or more";
    } else {
      return " from " + std::to_string(least) + " to " + std::to_string(most);
    }
  }

  const LookUp& look_up_;
  std::vector<std::string>& problems_;
};

}  // namespace

Environment read_environment(const LookUp& look_up) {
  Environment environment;
  const Reader reader(look_up, environment.problems);
  constexpr std::int32_t kAny = std::numeric_limits<std::int32_t>::max();
  // What is in doubt is the safe side: nothing is recorded, and NCCL is asked for nothing that costs.
  environment.is_disabled = !is_one_of(kNo, reader.text("SMON_RT_DISABLE").value_or(""));
  if (const std::string word = reader.text("SMON_RT_NCCL_DETAIL").value_or(""); !is_one_of(kNo, word)) {
    environment.nccl_detail = is_one_of(kYes, word);
    if (!environment.nccl_detail)
      environment.problems.push_back("SMON_RT_NCCL_DETAIL=" + word + " is ignored: it must be 1 or 0");
  }
  environment.trace_dir = reader.text("SMON_RT_TRACE_DIR");
  environment.run_id = reader.text("SMON_RT_RUN_ID");
  if (!environment.run_id) {
    environment.run_id = reader.text("TORCHELASTIC_RUN_ID");
    if (environment.run_id == "none") environment.run_id.reset();  // torchrun's word for "not given"
  }
  environment.sample_ratio = reader.number<double>("SMON_RT_SAMPLE_RATIO", 0, 1);
  environment.warmup_steps = reader.number<std::int32_t>("SMON_RT_WARMUP_STEPS", 0, kAny);
  if (const std::optional<std::string> level = reader.text("SMON_RT_LOG")) {
    environment.log_level = parse_log_level(lower(*level));
    if (!environment.log_level) {
      environment.problems.push_back("SMON_RT_LOG=" + *level +
                                     " is ignored: it must be one of off, error, warning, info, debug");
    }
  }
  environment.agent_dir = reader.text("SMON_RT_AGENT_DIR");
  if (!environment.agent_dir) environment.agent_dir = reader.text("XDG_RUNTIME_DIR");
  environment.node = reader.text("SMON_RT_NODE");
  environment.attempt = reader.number<std::int32_t>("TORCHELASTIC_RESTART_COUNT", 0, kAny);
  environment.rank = reader.number<std::int32_t>("RANK", 0, kAny);
  environment.world_size = reader.number<std::int32_t>("WORLD_SIZE", 1, kAny);
  environment.local_rank = reader.number<std::int32_t>("LOCAL_RANK", 0, kAny);
  for (const char* name : kTimingVariables) {
    if (const std::optional<std::string> value = reader.text(name)) {
      environment.timing_variables[name] = value->substr(0, kMaxTimingValueBytes);
    }
  }
  return environment;
}

std::optional<NcclInstance> parse_nccl_instance(const char* text, std::int64_t pid) {
  if (text == nullptr) return std::nullopt;
  std::array<std::uint64_t, 3> numbers{};
  const char* at = text;
  const char* const end = text + std::string_view(text).size();
  for (std::uint64_t& number : numbers) {
    const auto [read_to, error] = std::from_chars(at, end, number);
    const bool is_last = &number == &numbers.back();
    if (error != std::errc{} || (is_last ? read_to != end : read_to == end || *read_to != ':')) return std::nullopt;
    at = read_to + 1;
  }
  if (numbers[0] != static_cast<std::uint64_t>(pid)) return std::nullopt;
  return NcclInstance{numbers[1], numbers[2]};
}

std::optional<NcclInstance> named_nccl_instance() {
  return parse_nccl_instance(std::getenv("SMON_RT_NCCL_INSTANCE"), ::getpid());
}

std::string nccl_chain_name() {
  const char* name = std::getenv("SMON_RT_NCCL_CHAIN");
  const std::string_view given = name != nullptr ? name : "";
  return given == "0" || given == "1" ? "" : std::string(given);
}

Environment read_environment() {
  return read_environment([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace smon_rt
