#include "record_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <stdexcept>
#include <thread>

#include "format/trace_reader.h"
#include "tests/integration/file_bytes.h"

namespace smon_rt {

namespace fs = std::filesystem;
using std::chrono::steady_clock;

namespace {

class Collector final : public TraceVisitor {
 public:
  explicit Collector(RecordedTrace& trace) : trace_(trace) {}
  void on_identity(const TraceIdentity& identity) override { trace_.identities.push_back(identity); }
  void on_spans(const SpanBatch& batch) override {
    if (!batch.spans.empty() && (batch.spans[0].flags & span_flag::kAborted) != 0) {
      trace_.open_spans.insert(trace_.open_spans.end(), batch.spans.begin(), batch.spans.end());
      return;
    }
    for (std::size_t i = 0; i < batch.spans.size(); ++i) {
      const auto [at, is_new] = trace_.spans.insert({{batch.ring_id, batch.first_index + i}, batch.spans[i]});
      if (!is_new) ++trace_.duplicates;
    }
  }
  void on_step_times(std::span<const StepTime> step_times) override {
    trace_.step_times.insert(trace_.step_times.end(), step_times.begin(), step_times.end());
  }
  void on_names(const TraceNames& names) override {
    for (const TraceName& name : names.names) trace_.names[name.id] = name.text;
  }
  void on_losses(const TraceLosses& losses) override { trace_.losses = losses; }
  void on_end(std::string_view reason) override { trace_.ends.emplace_back(reason); }
  void on_leftover(const TraceLeftover& leftover) override { trace_.leftovers.push_back(leftover); }
  void on_damage(std::uint64_t offset, std::string_view what) override {
    trace_.damage.push_back(std::to_string(offset) + ": " + std::string(what));
  }

 private:
  RecordedTrace& trace_;
};

}  // namespace

std::size_t RecordedTrace::count(Kind kind) const {
  return static_cast<std::size_t>(
      std::ranges::count_if(spans, [&](const auto& entry) { return entry.second.kind == kind; }));
}

RecordedTrace read_traces(const fs::path& directory, const std::string& ending) {
  RecordedTrace trace;
  Collector collector(trace);
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().string().ends_with(ending)) paths.push_back(entry.path());
  }
  std::ranges::sort(paths, {}, [](const fs::path& path) { return std::pair(path.string().size(), path.string()); });
  for (const fs::path& path : paths) {
    ++trace.files;
    const std::vector<std::byte> bytes = read_file_bytes(path);
    read_trace(bytes, {}, collector);
  }
  const std::pair<std::uint32_t, std::uint64_t>* before = nullptr;
  for (const auto& [at, span] : trace.spans) {
    if (before != nullptr && before->first == at.first && before->second + 1 != at.second) ++trace.gaps;
    if ((before == nullptr || before->first != at.first) && at.second != 0) ++trace.gaps;
    before = &at;
  }
  return trace;
}

RecordProcess::RecordProcess(std::vector<std::string> arguments, const std::function<bool()>& set_up,
                             std::map<std::string, std::string> environment) {
  int to_child[2], from_child[2];
  if (::pipe2(to_child, O_CLOEXEC) != 0 || ::pipe2(from_child, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
  arguments.insert(arguments.begin(), RECORD_PROGRAM);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(to_child[0], STDIN_FILENO);
    ::dup2(from_child[1], STDOUT_FILENO);
    for (const char* name : {"SMON_RT_TRACE_DIR", "SMON_RT_RUN_ID", "SMON_RT_DISABLE", "RANK", "WORLD_SIZE",
                             "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    if (set_up && !set_up()) ::_exit(kSetUpFailed);
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    ::execv(RECORD_PROGRAM, argv.data());
    ::_exit(127);
  }
  ::close(to_child[0]);
  ::close(from_child[1]);
  input_ = to_child[1];
  output_ = from_child[0];
}

RecordProcess::~RecordProcess() {
  if (!is_reaped_) {
    ::kill(pid_, SIGKILL);
    wait();
  }
  ::close(input_);
  ::close(output_);
}

std::string RecordProcess::read_line() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(30);
  while (buffer_.find('\n') == std::string::npos) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - steady_clock::now());
    pollfd waiting{output_, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return "";
    char piece[4096];
    const ssize_t size = ::read(output_, piece, sizeof piece);
    if (size <= 0) return "";
    buffer_.append(piece, static_cast<std::size_t>(size));
  }
  const std::string line = buffer_.substr(0, buffer_.find('\n'));
  buffer_.erase(0, line.size() + 1);
  return line;
}

std::string RecordProcess::read_line_with(const std::string& beginning) {
  while (true) {
    const std::string line = read_line();
    if (line.empty() || line.starts_with(beginning)) return line;
  }
}

void RecordProcess::go_on() {
  if (::write(input_, "\n", 1) != 1) ADD_FAILURE() << "the process has gone";
}

void RecordProcess::send(int signal) {
  ::kill(pid_, signal);
}

int RecordProcess::wait() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(60);
  while (!is_reaped_) {
    const pid_t reaped = ::waitpid(pid_, &status_, WNOHANG);
    if (reaped == pid_ || reaped < 0) {
      is_reaped_ = true;
    } else if (steady_clock::now() > deadline) {
      ADD_FAILURE() << "the process hangs";
      ::kill(pid_, SIGKILL);
      ::waitpid(pid_, &status_, 0);
      is_reaped_ = true;
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return status_;
}

int RecordProcess::exit_code() {
  const int status = wait();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

bool becomes_true(const std::function<bool()>& condition) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

std::string value_in(const std::string& line, const std::string& key) {
  const std::string with_space = " " + line;
  const std::size_t begin = with_space.find(" " + key + "=");
  if (begin == std::string::npos) return "";
  const std::size_t value = begin + key.size() + 2;
  return with_space.substr(value, key == "last_error" ? std::string::npos : with_space.find(' ', value) - value);
}

long number_in(const std::string& line, const std::string& key) {
  const std::string value = value_in(line, key);
  return value.empty() ? -1 : std::stol(value);
}

bool mount_tmpfs(const std::string& path, const std::string& options) {
  return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", path.c_str(), "tmpfs", 0, options.c_str()) == 0;
}

std::vector<fs::path> arenas_of(const std::string& run_id) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().find("-" + run_id) != std::string::npos) paths.push_back(entry.path());
  }
  return paths;
}

void RecordTest::SetUp() {
  std::string pattern = (fs::temp_directory_path() / "smon-record-XXXXXX").string();
  ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
  directory_ = pattern;
  run_id_ = "t" + pattern.substr(pattern.size() - 6) + std::to_string(::getpid());
}

void RecordTest::TearDown() {
  fs::remove_all(directory_);
  for (const fs::path& path : arenas_of(run_id_)) fs::remove(path);
}

}  // namespace smon_rt
