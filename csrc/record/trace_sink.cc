#include "record/trace_sink.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

#include "format/trace_encoder.h"

namespace smon_rt {

TraceNames TraceSink::names_since(const Interner& interner, Cursor& cursor) {
  TraceNames names;
  for (InternedName& name : interner.names_since(cursor.names)) names.names.push_back({name.id, std::move(name.text)});
  for (InternedTrack& track : interner.tracks_since(cursor.tracks)) {
    names.tracks.push_back({track.id, track.thread_id, std::move(track.thread_name), track.device, track.stream});
  }
  for (InternedCommunicator& communicator : interner.communicators_since(cursor.communicators)) {
    names.communicators.push_back({communicator.id, std::move(communicator.name), std::move(communicator.dimension),
                                   std::move(communicator.member_ranks)});
  }
  cursor.names += names.names.size();
  cursor.tracks += names.tracks.size();
  cursor.communicators += names.communicators.size();
  return names;
}

TraceNames TraceSink::all_names(const Interner& interner) {
  Cursor from_the_first;
  return names_since(interner, from_the_first);
}

Result<void> TraceSink::open(const TraceIdentity& identity) {
  identity_ = identity;
  if (Result<void> opened = file_.open_next(); !opened) return opened;
  if (file_.is_on() && !begin_file()) return Error{file_.error()};
  return {};
}

bool TraceSink::begin_file() {
  identity_.file_index = file_.file_index();
  written_ = {};
  spans_in_file_ = 0;
  std::string packets;
  append_identity(packets, identity_);
  append_new_names(packets);
  if (!file_.append(packets)) return false;
  file_.end_head();
  return true;
}

void TraceSink::set_identity(const TraceIdentity& identity) {
  identity_ = identity;
  identity_.file_index = file_.file_index();
  std::string packet;
  append_identity(packet, identity_);
  write(packet);
}

void TraceSink::append_new_names(std::string& out) {
  const TraceNames names = names_since(interner_, written_);
  if (names != TraceNames{}) append_names(out, names);
}

bool TraceSink::write(std::string_view packets, std::uint64_t span_count) {
  if (!file_.append(packets)) return false;
  spans_in_file_ += span_count;
  if (file_.is_full()) rotate();
  return true;
}

void TraceSink::check_exists() {
  if (!file_.is_on()) return;
  file_.check_exists();
  if (file_.is_on() || ::access(file_.path().c_str(), F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR)) return;
  removed_spans_ += std::exchange(spans_in_file_, 0);
}

void TraceSink::rotate() {
  check_exists();  // the last look at this one
  std::string packet;
  append_end(packet, kRotated);
  if (file_.append(packet) && file_.open_next()) begin_file();
}

void TraceSink::close(std::string_view reason) {
  std::string packet;
  append_end(packet, reason);
  file_.append(packet);
  file_.close();
}

void TraceSink::discard() {
  if (!file_.is_on()) return;
  file_.close();
  ::unlink(file_.path().c_str());
}

}  // namespace smon_rt
