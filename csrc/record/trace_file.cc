#include "record/trace_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "record/open_for_writing.h"

namespace smon_rt {
namespace {

// More files of one attempt than any rotation makes; a directory that holds them all is left alone.
constexpr std::uint32_t kMaxFileIndex = 100'000;

std::string errno_text(int error_number) {
  char buffer[128] = {};
  // The GNU variant, which may return a string of its own.
  return strerror_r(error_number, buffer, sizeof buffer);
}

/// For the errors that a user meets, what to do about them.
std::string_view advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "free some space or lower sample_ratio";
    case EFBIG:
      return "raise the limit of the file size (ulimit -f) or lower max_file_bytes";
    case EROFS:
    case EACCES:
    case EPERM:
      return "give a directory that this user may write";
    case ENOENT:
    case ENOTDIR:
      return "make the directory";
    case EMFILE:
    case ENFILE:
      return "raise the limit of open files (ulimit -n)";
    case ENAMETOOLONG:
      return "give a shorter path";
    default:
      return "see the file system's log";
  }
}

Result<void> make_last_part(const std::string& directory) {
  if (::mkdir(directory.c_str(), 0777) == 0 || errno == EEXIST) return {};
  const int error_number = errno;
  return Error{"cannot make directory " + directory + ": " + errno_text(error_number) + ": " +
               std::string(advice(error_number))};
}

}  // namespace

std::string trace_file_stem(std::string_view run_id, std::uint32_t attempt, std::int32_t rank) {
  char number[16];
  std::snprintf(number, sizeof number, "%05d", rank);
  std::string stem = "rank-" + std::string(number) + ".";
  for (const char c : run_id.substr(0, 63)) {
    const bool is_plain =
        (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
    stem += is_plain ? c : '_';
  }
  return stem + "-" + std::to_string(attempt);
}

TraceFile::TraceFile(TraceFileOptions options) : options_(std::move(options)) {}

void TraceFile::close() {
  descriptor_.close();
}

Result<void> TraceFile::turn_off(std::string_view what, int error_number) {
  error_ = std::string(what) + ": " + errno_text(error_number) + ": " + std::string(advice(error_number));
  say_last_words();
  close();
  return Error{error_};
}

void TraceFile::say_last_words() {
  if (!make_last_words_ || !descriptor_.is_ours()) return;
  const std::string words = make_last_words_(error_);
  // Into the room that was kept, or else what is left of a block.
  const ssize_t count = ::write(descriptor_.fd(), words.data(), words.size());
  if (count == static_cast<ssize_t>(words.size())) {
    file_bytes_ += words.size();
    total_bytes_ += words.size();
    (void)!::ftruncate(descriptor_.fd(), static_cast<off_t>(file_bytes_));  // the rest of the room goes back
  } else if (count > 0 && ::ftruncate(descriptor_.fd(), static_cast<off_t>(file_bytes_)) != 0) {
    file_bytes_ += static_cast<std::uint64_t>(count);  // readers take any prefix
  }
}

void TraceFile::turn_off_as_closed() {
  close();
  error_ = "stopped writing " + path_ + ": its descriptor was closed by the job: start recording after what closes it";
}

Result<void> TraceFile::open_next() {
  close();
  if (options_.directory.empty()) return {};
  if (!error_.empty()) return Error{error_};
  if (path_.empty()) {  // not when rotating: a directory that vanished is not made again behind the user's back
    if (Result<void> made = make_last_part(options_.directory); !made) {
      error_ = made.error().message;
      return made;
    }
  }
  const std::string stem = options_.directory + "/" + trace_file_stem(options_.run_id, options_.attempt, options_.rank);
  for (std::uint32_t index = next_index_; index < kMaxFileIndex; ++index) {
    std::string path = stem;
    if (index > 0) path.append("-").append(std::to_string(index));
    path += ".smon";
    do {
      descriptor_ = OwnedDescriptor(open_for_writing(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND, 0666));
    } while (!descriptor_.is_open() && errno == EINTR);
    if (descriptor_.is_open()) {
      path_ = path;
      file_index_ = index;
      next_index_ = index + 1;
      file_bytes_ = head_bytes_ = 0;
      return {};
    }
    if (errno != EEXIST) return turn_off("cannot make " + path, errno);
  }
  return turn_off("cannot make another file beside " + stem + ".smon", EEXIST);
}

/// Takes it, and as much behind it as last words need: of a full disk they could not be told else. False: it is full.
bool TraceFile::has_room_for(std::size_t bytes) {
  constexpr std::size_t kRoomForLastWords = 1024;
  if (!can_reserve_ || !descriptor_.is_ours()) return true;
  const auto begin = static_cast<off_t>(file_bytes_);
  const auto size = static_cast<off_t>(bytes + kRoomForLastWords);
  while (::fallocate(descriptor_.fd(), FALLOC_FL_KEEP_SIZE, begin, size) != 0) {
    if (errno == ENOSPC || errno == EDQUOT) return false;
    if (errno == EINTR) continue;
    can_reserve_ = false;
    break;
  }
  return true;
}

bool TraceFile::append(std::string_view packets) {
  if (!is_on()) return false;
  if (!has_room_for(packets.size())) {
    (void)turn_off("stopped writing " + path_, errno);
    return false;
  }
  std::size_t written = 0;
  while (written < packets.size()) {
    if (!descriptor_.is_ours()) {  // a half packet stays: readers take any prefix
      file_bytes_ += written;
      turn_off_as_closed();
      return false;
    }
    const ssize_t count = ::write(descriptor_.fd(), packets.data() + written, packets.size() - written);
    if (count > 0) {
      written += static_cast<std::size_t>(count);
      continue;
    }
    if (count < 0 && errno == EINTR) continue;
    const int error_number = count < 0 ? errno : ENOSPC;  // nothing taken without an error: as full as it gets
    // Cut the half packet off, so that the file ends where a reader expects it to; if even that fails, readers take
    // any prefix.
    if (written > 0 &&
        !(descriptor_.is_ours() && ::ftruncate(descriptor_.fd(), static_cast<off_t>(file_bytes_)) == 0)) {
      file_bytes_ += written;
      make_last_words_ = nullptr;  // after half a packet nothing is read
    }
    if (error_number == EBADF) {  // just now
      turn_off_as_closed();
    } else {
      (void)turn_off("stopped writing " + path_, error_number);
    }
    return false;
  }
  file_bytes_ += written;
  total_bytes_ += written;
  return true;
}

void TraceFile::check_exists() {
  if (!is_on()) return;
  struct stat status{};
  if (!descriptor_.is_ours(&status)) {
    turn_off_as_closed();
  } else if (status.st_nlink == 0) {
    (void)turn_off("stopped writing " + path_ + ", which was removed", ENOENT);
  }
}

}  // namespace smon_rt
