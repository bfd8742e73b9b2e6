#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "base/owned_descriptor.h"
#include "base/result.h"

namespace smon_rt {

struct TraceFileOptions {
  std::string directory;       // made if only its last part is missing; "": there is no file from the start
  std::string run_id = "run";  // characters that do not belong into a file name become '_'
  std::uint32_t attempt = 0;
  std::int32_t rank = 0;
  std::uint64_t max_file_bytes = std::uint64_t{1} << 30;  // a file beyond it is full: the caller rotates
};

/// rank-00003.<run>-<attempt>, the stem of all files of one rank and attempt.
std::string trace_file_stem(std::string_view run_id, std::uint32_t attempt, std::int32_t rank);

/// The trace file of this process: made new (O_EXCL), appended to by whole packets, turned off by the first failure.
///
/// rank-00003.<run>-<attempt>.smon; where that exists (an earlier start in this attempt, or rotation) the first free
/// of rank-00003.<run>-<attempt>-1.smon, -2, …: file_index() says which.
///
/// Threading: one thread, with signals blocked (a write beyond RLIMIT_FSIZE raises SIGXFSZ).
/// When full, or the disk fails: the file is off for good with the reason in error(), its tail cut back to whole
/// packets, and the last words after them, for which room is kept where the file system can; nothing is retried. The
/// job is never touched: if it closed our descriptor, the file is off, and what has the number now is left alone.
class TraceFile {
 public:
  explicit TraceFile(TraceFileOptions options);
  TraceFile(const TraceFile&) = delete;
  TraceFile& operator=(const TraceFile&) = delete;

  /// Makes the first file, or the next one after closing the current one. On failure the file is off.
  Result<void> open_next();

  /// Appends whole packets. False if they are not in the file: it is off, from before or from now on.
  bool append(std::string_view packets);

  /// What was written so far says who recorded, and begins each file. A file is not full before it holds as much again:
  /// long tables of names must not make files that hold nothing else.
  void end_head() { head_bytes_ = file_bytes_; }

  /// Turns the file off if it was removed under us: what is written to it would be lost silently.
  void check_exists();

  /// Closes without an error; append() is false afterwards.
  void close();

  /// Makes the packets that a file which cannot be written on ends with, given why: readers learn it from them alone.
  void set_last_words(std::function<std::string(const std::string& error)> make) { make_last_words_ = std::move(make); }

  bool is_on() const { return descriptor_.is_open(); }
  /// Beyond its size, and not of its head alone.
  bool is_full() const { return is_on() && file_bytes_ >= std::max(options_.max_file_bytes, 2 * head_bytes_); }
  const std::string& path() const { return path_; }    // of the newest file, "" if none was ever made
  const std::string& error() const { return error_; }  // why it is off; "" if it is on or there should be none
  std::uint32_t file_index() const { return file_index_; }
  std::uint64_t file_bytes() const { return file_bytes_; }    // of the newest file
  std::uint64_t total_bytes() const { return total_bytes_; }  // of all files

 private:
  Result<void> turn_off(std::string_view what, int error_number);
  void turn_off_as_closed();
  void say_last_words();
  bool has_room_for(std::size_t bytes);

  std::function<std::string(const std::string& error)> make_last_words_;
  TraceFileOptions options_;
  std::string path_;
  std::string error_;
  OwnedDescriptor descriptor_;
  bool can_reserve_ = true;  // the file system gives room ahead of what is written
  std::uint32_t file_index_ = 0;
  std::uint32_t next_index_ = 0;
  std::uint64_t file_bytes_ = 0;
  std::uint64_t head_bytes_ = 0;
  std::uint64_t total_bytes_ = 0;
};

}  // namespace smon_rt
