// A process that records, for the tests: does one thing after the other as its arguments say.
//
//   start:KEY=VALUE,…  smon_start; keys dir run attempt rank max_file_bytes warmup_steps
//   steps:N            N steps of four forward spans and an optimizer span
//   spans:N            N forward spans outside of any step
//   open:N             N spans that are never ended
//   slow_steps:N       N steps of a millisecond
//   threads:N          N threads, one after the other, with 100 spans each
//   sync               waits until what is in rings is in the file (or dropped)
//   file_error         waits until the file is given up
//   request:FIRST+N    smon_request_sampling
//   intern:TEXT pause resume stop
//   fork:N             a child that records N spans and ends by _exit; waits for it
//   fork_stay          a child that does nothing and outlives us, until it is killed
//   fork_start:DIR     a child that starts anew as rank 9, records a step and exits
//   block_writes       from here on the drain thread does not come back from write(), as with a file system that hangs
//   stop_timed         smon_stop, and how many ms it took
//   take_descriptors:PATH   closes all from 3 on, and opens this file under the numbers that are free now
//   check_descriptors:PATH  whether these are as they were, and can be closed
//   close_standard     closes 0, 1 and 2
//   print              from here on a thread writes to 0, 1 and 2 again and again; ends with 98 if a file takes it
//   check_standard     ends with 97 if one of them stays open for 20 s
//   exec               goes on in a new image of the same process
//   fill_disk:DIR      writes a file there until nothing more fits
//   limit_files        from here on no file of this process can grow (RLIMIT_FSIZE)
//   status             prints one line of KEY=VALUE
//   wait               prints "ready", then waits for a line on standard input
//   exit:CODE          exit(); return:CODE from main; _exit:CODE; throw; abort

#include <fcntl.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "api/smon_rt.h"

namespace {

std::atomic<bool> g_blocks_writes{false};
std::atomic<bool> g_is_forked_child{false};

}  // namespace

// LeakSanitizer asks this at exit. A forked child has none of its parent's threads: what they were holding, on stacks
// that nobody looks at any more, would be reported as leaks of the child.
extern "C" [[gnu::visibility("default")]] int __lsan_is_turned_off();
extern "C" int __lsan_is_turned_off() {
  return g_is_forked_child ? 1 : 0;
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
namespace {

bool is_drain_thread() {
  char name[16] = {};
  return pthread_getname_np(pthread_self(), name, sizeof name) == 0 && std::strcmp(name, "smon_drain") == 0;
}

}  // namespace

// In the place of the C library's, for the recorder too.
extern "C" [[gnu::visibility("default")]] ssize_t write(int fd, const void* bytes, size_t count) {
  while (g_blocks_writes.load() && is_drain_thread()) std::this_thread::sleep_for(std::chrono::seconds(1));
  return syscall(SYS_write, fd, bytes, count);
}
#endif

namespace {

using std::chrono::steady_clock;

void span(smon_kind kind, int microbatch) {
  smon_span_ids ids = SMON_NO_IDS;
  ids.microbatch = static_cast<std::int16_t>(microbatch);
  smon_end(smon_begin(kind, &ids));
}

void step() {
  smon_step_begin(-1);
  for (int microbatch = 0; microbatch < 4; ++microbatch) span(SMON_FORWARD_COMPUTE, microbatch);
  span(SMON_OPTIMIZER, -1);
  smon_step_end();
}

void spin(std::chrono::microseconds time) {
  const auto until = steady_clock::now() + time;
  while (steady_clock::now() < until) {
  }
}

/// More spans than a ring holds, without losing any: the drain thread gets its time.
void spans(long count) {
  for (long i = 0; i < count; ++i) {
    span(SMON_FORWARD_COMPUTE, static_cast<int>(i % 1000));
    if (i % 512 == 511) std::this_thread::sleep_for(std::chrono::milliseconds(15));
  }
}

smon_status read_status() {
  smon_status status = {};
  status.struct_size = sizeof status;
  smon_status_read(&status);
  return status;
}

void print_status() {
  const smon_status s = read_status();
  std::cout << "started=" << s.is_started << " paused=" << s.is_paused << " step=" << s.step
            << " recorded=" << s.recorded_spans << " written=" << s.written_spans << " dropped=" << s.dropped_spans
            << " unwritten=" << s.unwritten_spans << " foreign=" << s.foreign_tokens
            << " no_ring=" << s.threads_without_ring << " steps=" << s.steps << " sampled=" << s.sampled_steps
            << " bytes=" << s.file_bytes << " path=" << s.file_path << " file_error=" << (s.file_error[0] != '\0')
            << " last_error=" << smon_last_error() << std::endl;
}

void start(const std::string& text) {
  smon_config config;
  smon_config_init(&config);
  std::map<std::string, std::string> values;
  std::stringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) {
    values[part.substr(0, part.find('='))] = part.substr(part.find('=') + 1);
  }
  if (values.contains("dir")) config.trace_dir = values["dir"].c_str();
  if (values.contains("run")) config.run_id = values["run"].c_str();
  if (values.contains("attempt")) config.attempt = std::stoi(values["attempt"]);
  if (values.contains("rank")) config.rank = std::stoi(values["rank"]);
  if (values.contains("max_file_bytes")) config.max_file_bytes = std::stoull(values["max_file_bytes"]);
  if (values.contains("warmup_steps")) config.warmup_steps = std::stoi(values["warmup_steps"]);
  std::cout << "start=" << smon_start(&config) << std::endl;
}

void sync() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (steady_clock::now() < deadline) {
    const smon_status s = read_status();
    if (s.written_spans >= s.recorded_spans || s.file_path[0] == '\0' || s.file_error[0] != '\0') return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void wait_for_file_error() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  while (read_status().file_error[0] == '\0' && steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void fill_disk(const std::string& directory) {
  const int file = open((directory + "/filler").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  const std::string block(4096, 'x');
  while (::write(file, block.data(), block.size()) > 0) {
  }
  close(file);
}

void in_child(const std::string& name, const std::string& value) {
  std::cout.flush();
  const pid_t child = fork();
  if (child != 0) {
    int status = 0;
    waitpid(child, &status, 0);
    std::cout << "child=" << status << std::endl;
    return;
  }
  g_is_forked_child = true;
  if (name == "fork") {
    for (long i = 0; i < std::stol(value); ++i) span(SMON_BACKWARD_COMPUTE, 1);
    smon_intern_name("from the child");
    smon_set_fact("version.child", "1");
    smon_step_begin(1000000);
    smon_step_end();
    const bool is_inert = read_status().is_started == 0 && smon_stop() == SMON_NOT_STARTED;
    _exit(is_inert ? 0 : 1);
  }
  start("rank=9,dir=" + value);
  step();
  std::exit(smon_stop() == SMON_OK ? 0 : 1);
}

void fork_stay() {
  std::cout.flush();
  const pid_t child = fork();
  if (child == 0) {
    for (int fd = 0; fd < 3; ++fd) close(fd);  // whoever reads our output must see its end
    alarm(120);
    while (true) pause();
  }
  std::cout << "worker=" << child << std::endl;
}

constexpr int kTakenDescriptors = 200;
constexpr char kOwnText[] = "the job's own";

void take_descriptors(const std::string& path) {
  (void)syscall(SYS_close_range, 3, ~0U, 0);
  std::ofstream(path) << kOwnText;
  for (int i = 0; i < kTakenDescriptors; ++i) (void)!open(path.c_str(), O_RDWR | O_APPEND);
}

void check_descriptors(const std::string& path) {
  struct stat own = {};
  stat(path.c_str(), &own);
  int closed = 0;
  for (int fd = 3; fd < 3 + kTakenDescriptors; ++fd) {
    struct stat status = {};
    if (fstat(fd, &status) == 0 && status.st_ino == own.st_ino && close(fd) == 0) ++closed;
  }
  std::string text;
  std::getline(std::ifstream(path), text);
  std::cout << "intact=" << (text == kOwnText) << " closed=" << closed << std::endl;
}

/// Not a pipe: UndefinedBehaviorSanitizer opens some, to see whether memory can be read.
bool is_file_to_write(int fd) {
  struct stat status = {};
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && (flags & O_ACCMODE) != O_RDONLY && fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
}

void print_again_and_again() {
  std::signal(SIGPIPE, SIG_IGN);  // from those pipes
  std::thread([] {
    while (true) {
      for (int fd = 0; fd < 3; ++fd) {
        (void)syscall(SYS_write, fd, kOwnText, sizeof kOwnText);
        if (is_file_to_write(fd)) _exit(98);
      }
    }
  }).detach();
}

/// For a moment one may be open: every open() of a thread of ours, or of a sanitizer's, gets the lowest number.
void check_standard() {
  const auto deadline = steady_clock::now() + std::chrono::seconds(20);
  for (int fd = 0; fd < 3; ++fd) {
    while (fcntl(fd, F_GETFD) >= 0) {
      if (steady_clock::now() > deadline) _exit(97);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

bool run(const std::string& name, const std::string& value) {
  if (name == "start") {
    start(value);
  } else if (name == "steps") {
    for (long i = 0; i < std::stol(value); ++i) step();
  } else if (name == "slow_steps") {
    for (long i = 0; i < std::stol(value); ++i) {
      smon_step_begin(-1);
      span(SMON_FORWARD_COMPUTE, 0);
      spin(std::chrono::milliseconds(1));
      smon_step_end();
    }
  } else if (name == "spans") {
    spans(std::stol(value));
  } else if (name == "open") {
    for (long i = 0; i < std::stol(value); ++i) smon_begin(SMON_BACKWARD_COMPUTE, nullptr);
  } else if (name == "threads") {
    for (long i = 0; i < std::stol(value); ++i) {
      std::thread([] {
        for (int k = 0; k < 100; ++k) span(SMON_FORWARD_COMPUTE, k);
      }).join();
    }
  } else if (name == "sync") {
    sync();
  } else if (name == "file_error") {
    wait_for_file_error();
  } else if (name == "request") {
    const auto result = smon_request_sampling(std::stol(value), std::stoi(value.substr(value.find('+') + 1)));
    std::cout << "request=" << result << std::endl;
  } else if (name == "intern") {
    std::cout << "id=" << smon_intern_name(value.c_str()) << std::endl;
  } else if (name == "pause") {
    smon_pause();
  } else if (name == "resume") {
    smon_resume();
  } else if (name == "stop") {
    std::cout << "stop=" << smon_stop() << std::endl;
  } else if (name == "block_writes") {
    g_blocks_writes = true;
  } else if (name == "stop_timed") {
    const auto begin = steady_clock::now();
    const auto result = smon_stop();
    const auto taken = std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin);
    std::cout << "stop=" << result << " ms=" << taken.count() << std::endl;
  } else if (name == "fill_disk") {
    fill_disk(value);
  } else if (name == "limit_files") {
    const rlimit nothing{0, 0};
    setrlimit(RLIMIT_FSIZE, &nothing);
  } else if (name == "fork" || name == "fork_start") {
    in_child(name, value);
  } else if (name == "fork_stay") {
    fork_stay();
  } else if (name == "take_descriptors") {
    take_descriptors(value);
  } else if (name == "check_descriptors") {
    check_descriptors(value);
  } else if (name == "close_standard") {
    for (int fd = 0; fd < 3; ++fd) close(fd);
  } else if (name == "print") {
    print_again_and_again();
  } else if (name == "check_standard") {
    check_standard();
  } else if (name == "status") {
    print_status();
  } else if (name == "wait") {
    std::cout << "ready" << std::endl;
    std::string line;
    std::getline(std::cin, line);
  } else {
    return false;
  }
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string name = argument.substr(0, argument.find(':'));
    const std::string value = name == argument ? "" : argument.substr(name.size() + 1);
    if (name == "exit") std::exit(std::stoi(value));
    if (name == "_exit") _exit(std::stoi(value));
    if (name == "return") return std::stoi(value);
    if (name == "throw") throw std::runtime_error("asked for");
    if (name == "abort") std::abort();
    if (name == "exec") {
      argv[i] = argv[0];
      execv("/proc/self/exe", argv + i);
    }
    if (!run(name, value)) return 99;
  }
  return 0;
}
