// smon-agent: keeps the checkpoints of one run on one node. Started by trainers (checkpoint/agent_start.h).
#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <asio/signal_set.hpp>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "agent/agent_lock.h"
#include "agent/agent_log.h"
#include "agent/node_agent.h"
#include "agent/packet_socket.h"
#include "checkpoint/agent_folder.h"

namespace smon_rt {
namespace {

constexpr const char* kUsage = "usage: smon-agent --folder PATH --run-id ID [--ttl-s SECONDS] [--detach]";

struct Arguments {
  std::string folder;
  std::string run_id;
  std::uint32_t ttl_s = 600;
  bool is_detached = false;
};

Result<Arguments> parse(std::span<char* const> words) {
  Arguments arguments;
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string_view name = words[i];
    if (name == "--detach") {
      arguments.is_detached = true;
      continue;
    }
    if (i + 1 == words.size()) return Error{std::string(name) + " needs a value, or is not known; " + kUsage};
    const std::string_view value = words[++i];
    if (name == "--folder") {
      arguments.folder = value;
    } else if (name == "--run-id") {
      arguments.run_id = value;
    } else if (name == "--ttl-s") {
      const auto parsed = std::from_chars(value.data(), value.data() + value.size(), arguments.ttl_s);
      if (parsed.ec != std::errc() || parsed.ptr != value.data() + value.size()) {
        return Error{"--ttl-s " + std::string(value) + " is no number of seconds"};
      }
    } else {
      return Error{std::string(name) + " is not known; " + kUsage};
    }
  }
  if (arguments.folder.empty() || arguments.folder[0] != '/' || arguments.run_id.empty()) {
    return Error{std::string("an absolute --folder and a --run-id are needed; ") + kUsage};
  }
  return arguments;
}

/// The first process waits for the word of the second, which goes on as the agent.
class Detached {
 public:
  /// In the first process: its exit code. In the second: none.
  std::optional<int> fork() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return fail("no pipe");
    const pid_t child = ::fork();
    if (child < 0) return fail("no process");
    if (child > 0) {
      ::close(ends[1]);
      char word = 0;
      ssize_t got = 0;
      do {
        got = ::read(ends[0], &word, 1);
      } while (got < 0 && errno == EINTR);
      return got == 1 ? 0 : 1;  // without a word it has said on standard error why
    }
    ::close(ends[0]);
    ready_ = ends[1];
    ::setsid();
    return std::nullopt;
  }

  /// The agent listens, or another one does. Nobody reads what is said from here on.
  void say_ready() {
    if (ready_ < 0) return;
    const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (const int stream : {0, 1, 2}) ::dup2(null, stream);
    if (null > 2) ::close(null);
    if (::write(ready_, "1", 1) == 1) ::close(ready_);
    ready_ = -1;
  }

 private:
  static int fail(const char* what) {
    std::fprintf(stderr, "smon-agent: cannot start: %s: %s\n", what, std::strerror(errno));
    return 1;
  }

  int ready_ = -1;
};

int fail(const Error& error) {
  std::fprintf(stderr, "smon-agent: %s\n", error.message.c_str());
  return 1;
}

void accept_all(asio::posix::stream_descriptor& listener, NodeAgent& agent) {
  listener.async_wait(asio::posix::stream_descriptor::wait_read, [&](asio::error_code failed) {
    if (failed) return;
    while (auto peer = accept_peer(listener.native_handle())) agent.add(std::move(*peer));
    accept_all(listener, agent);
  });
}

void serve(const Arguments& arguments, const AgentFolder& folder, AgentLock& lock, const OwnedDescriptor& socket,
           Detached& detached) {
  AgentLog log(folder.fd());
  asio::io_context io(1);
  asio::signal_set signals(io, SIGTERM, SIGINT);
  std::string why;
  const auto end = [&](const std::string& reason) {
    why = reason;
    io.stop();
  };
  signals.async_wait([&](asio::error_code failed, int number) {
    if (!failed) end("signal " + std::to_string(number));
  });
  log.write("smon-agent " SMON_RT_VERSION " of run " + arguments.run_id + ", process " + std::to_string(::getpid()));
  {
    NodeAgent agent(io, {arguments.run_id, arguments.ttl_s, SMON_RT_VERSION}, folder, log, lock, end);
    asio::posix::stream_descriptor listener(io, ::dup(socket.fd()));
    accept_all(listener, agent);
    detached.say_ready();
    io.run();
  }
  log.write("ends: " + why);
  ::unlinkat(folder.fd(), AgentFolder::kSocketName, 0);
}

int run(const Arguments& arguments) {
  ::umask(077);
  Detached detached;
  if (arguments.is_detached) {
    if (const auto code = detached.fork()) return *code;
  }
  auto folder = AgentFolder::make(arguments.folder);
  if (!folder) return fail(folder.error());
  auto lock = AgentLock::take(*folder);
  if (!lock) return fail(lock.error());
  if (!*lock) {  // another one was faster
    detached.say_ready();
    return 0;
  }
  const auto socket = listen_in(*folder);
  if (!socket) return fail(socket.error());
  if (::chdir("/") != 0) return fail(Error{"chdir /"});
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGHUP, SIG_IGN);
  serve(arguments, *folder, **lock, *socket, detached);
  return 0;
}

}  // namespace
}  // namespace smon_rt

int main(int argc, char** argv) {
  const std::span<char* const> words(argv, static_cast<std::size_t>(argc));
  if (argc == 2 && std::string_view(argv[1]) == "--version") {
    std::puts("smon-agent " SMON_RT_VERSION);
    return 0;
  }
  if (argc == 2 && std::string_view(argv[1]) == "--help") {
    std::puts(smon_rt::kUsage);
    return 0;
  }
  const auto arguments = smon_rt::parse(words);
  if (!arguments) {
    std::fprintf(stderr, "smon-agent: %s\n", arguments.error().message.c_str());
    return 2;
  }
  return smon_rt::run(*arguments);
}
