#include "base/process_state.h"

#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>

namespace smon_rt {

namespace detail {
constinit std::atomic<RecordingState> g_recording_state{RecordingState::kOff};
}  // namespace detail

namespace {

constexpr std::size_t kMaxHandlers = 8;
constinit std::array<std::atomic<void (*)()>, kMaxHandlers> g_child_handlers{};
constinit std::atomic<std::size_t> g_child_handler_count{0};
constinit std::atomic<std::uint32_t> g_fork_count{0};

void on_fork_in_child() {
  detail::g_recording_state.store(RecordingState::kOff, std::memory_order_relaxed);
  g_fork_count.fetch_add(1, std::memory_order_relaxed);
  for (auto& slot : g_child_handlers) {
    if (auto* handler = slot.load(std::memory_order_relaxed)) handler();
  }
}

void watch_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, &on_fork_in_child);
  (void)registered;
}

/// The fields of /proc/<pid>/stat after the program's name, which may hold anything: "S 1 …". Empty: no such process.
std::string stat_after_name(std::int32_t pid) {
  // "self" is right in a pid namespace, too, whose /proc is still that of another one.
  std::ifstream file("/proc/" + (pid == ::getpid() ? "self" : std::to_string(pid)) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = text.rfind(") ");
  return name_end == std::string::npos ? std::string() : text.substr(name_end + 2);
}

std::optional<std::uint64_t> start_ticks_in(const std::string& stat) {
  constexpr int kStateField = 3;
  constexpr int kStartField = 22;
  std::size_t at = 0;
  for (int field = kStateField; field < kStartField; ++field) {
    at = stat.find(' ', at);
    if (at == std::string::npos) return std::nullopt;
    ++at;
  }
  std::uint64_t ticks = 0;
  if (std::sscanf(stat.c_str() + at, "%lu", &ticks) != 1) return std::nullopt;
  return ticks;
}

}  // namespace

void set_recording_state(RecordingState state) noexcept {
  watch_forks();
  detail::g_recording_state.store(state, std::memory_order_release);  // pairs with the acquire in recording_state()
}

bool at_fork_in_child(void (*handler)()) noexcept {
  watch_forks();
  const auto at = g_child_handler_count.fetch_add(1, std::memory_order_relaxed);
  if (at >= kMaxHandlers) return false;
  g_child_handlers[at].store(handler, std::memory_order_relaxed);
  return true;
}

std::uint32_t fork_count() noexcept {
  watch_forks();
  return g_fork_count.load(std::memory_order_relaxed);
}

std::optional<std::uint64_t> process_start_ticks(std::int32_t pid) {
  return start_ticks_in(stat_after_name(pid));
}

bool is_process_alive(std::int32_t pid, std::uint64_t start_ticks) {
  const std::string stat = stat_after_name(pid);
  if (stat.empty() || stat[0] == 'Z' || stat[0] == 'X') return false;
  return start_ticks_in(stat) == start_ticks;
}

std::int32_t current_thread_id() noexcept {
  return static_cast<std::int32_t>(::syscall(SYS_gettid));
}

void current_thread_name(char* name, std::size_t size) noexcept {
  if (size == 0) return;
  std::array<char, 16> text{};
  if (::pthread_getname_np(::pthread_self(), text.data(), text.size()) != 0) text[0] = '\0';
  std::snprintf(name, size, "%s", text.data());
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return {};
  return name.data();
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

std::uint64_t time_namespace() {
  struct ::stat info{};
  return ::stat("/proc/self/ns/time", &info) == 0 ? static_cast<std::uint64_t>(info.st_ino) : 0;
}

}  // namespace smon_rt
