#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "format/span.h"
#include "format/trace_records.h"

namespace smon_rt {

/// Everything in the trace files of a directory.
struct RecordedTrace {
  std::size_t files = 0;
  std::vector<TraceIdentity> identities;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Span> spans;  // by file's process, ring and index: see read_traces
  std::vector<Span> open_spans;
  std::size_t duplicates = 0;  // spans with a ring and index that were there already
  std::size_t gaps = 0;        // indices of a ring that are missing between others
  std::vector<StepTime> step_times;
  std::map<std::uint32_t, std::string> names;
  TraceLosses losses;  // of the last packet
  std::vector<std::string> ends;
  std::vector<TraceLeftover> leftovers;
  std::vector<std::string> damage;

  std::size_t count(Kind kind) const;
};

/// Reads files of one process whose names end so.
RecordedTrace read_traces(const std::filesystem::path& directory, const std::string& ending = ".smon");

/// record_program with these arguments, standard input and output in our hands.
class RecordProcess {
 public:
  /// `set_up` runs in the child before the program; false ends it with kSetUpFailed.
  explicit RecordProcess(std::vector<std::string> arguments, const std::function<bool()>& set_up = nullptr,
                         std::map<std::string, std::string> environment = {});
  ~RecordProcess();
  RecordProcess(const RecordProcess&) = delete;
  RecordProcess& operator=(const RecordProcess&) = delete;

  static constexpr int kSetUpFailed = 77;

  pid_t pid() const { return pid_; }
  /// The next line that it prints; "" once it has ended, or after 30 s.
  std::string read_line();
  /// Reads lines until one begins so; "" if none does.
  std::string read_line_with(const std::string& beginning);
  /// Lets it go on from "wait".
  void go_on();
  void send(int signal);
  /// As of waitpid; fails the test after 60 s.
  int wait();
  /// Exit code, -signal if a signal ended it.
  int exit_code();

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string buffer_;
  int status_ = 0;
  bool is_reaped_ = false;
};

/// Asks again and again until it is so; false after 30 s.
bool becomes_true(const std::function<bool()>& condition);

/// Value of KEY=VALUE in a line of status.
std::string value_in(const std::string& line, const std::string& key);
long number_in(const std::string& line, const std::string& key);

/// In a child: an own mount namespace with a tmpfs of this size at `path`. False where that is not allowed.
bool mount_tmpfs(const std::string& path, const std::string& options);

/// Arenas in /dev/shm with this run id.
std::vector<std::filesystem::path> arenas_of(const std::string& run_id);

class RecordTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  std::string start(const std::string& more = "") const {
    return "start:dir=" + directory_.string() + ",run=" + run_id_ + more;
  }

  std::filesystem::path directory_;
  std::string run_id_;  // one of its own, so that no other test's arena is met
};

}  // namespace smon_rt
