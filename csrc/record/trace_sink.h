#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/result.h"
#include "format/trace_records.h"
#include "record/interner.h"
#include "record/trace_file.h"

namespace smon_rt {

/// A trace file that can be read from its first packet on: identity first, names before the spans that use them, both
/// repeated in each file that rotation begins.
///
/// Threading: the drain thread, once opened.
class TraceSink {
 public:
  TraceSink(TraceFileOptions options, const Interner& interner) : file_(std::move(options)), interner_(interner) {}

  /// Makes the first file and writes who records. On failure recording goes on without a file.
  Result<void> open(const TraceIdentity& identity);

  /// Written now, and at the head of the files to come.
  void set_identity(const TraceIdentity& identity);
  const TraceIdentity& identity() const { return identity_; }

  /// Appends what was interned since the last call. Call it between reading a ring's write_index and encoding the
  /// spans before it: a span's names were interned before the span was pushed.
  void append_new_names(std::string& out);

  /// Writes whole packets, with so many spans, and begins the next file if this one is full. False: they are lost, and
  /// the file is off.
  bool write(std::string_view packets, std::uint64_t span_count = 0);

  /// Turns the file off if it was removed under us.
  void check_exists();
  /// How many spans went with a file that was removed, since the last call.
  std::uint64_t take_removed_spans() { return std::exchange(removed_spans_, 0); }

  /// The last packet of the file.
  void close(std::string_view reason);

  /// Removes the file, in which nothing was recorded yet.
  void discard();

  /// How many communicators, from the first on, have a name in the file.
  std::uint32_t written_communicators() const { return static_cast<std::uint32_t>(written_.communicators); }

  TraceFile& file() { return file_; }
  const TraceFile& file() const { return file_; }
  /// Everything interned so far, for files that stand alone.
  static TraceNames all_names(const Interner& interner);

 private:
  struct Cursor {
    std::size_t names = 0;
    std::size_t tracks = 0;
    std::size_t communicators = 0;
  };
  static TraceNames names_since(const Interner& interner, Cursor& cursor);
  bool begin_file();
  void rotate();

  TraceFile file_;
  const Interner& interner_;
  TraceIdentity identity_;
  Cursor written_;
  std::uint64_t spans_in_file_ = 0;
  std::uint64_t removed_spans_ = 0;
};

}  // namespace smon_rt
