#include "agent/tried_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <system_error>

#include "base/owned_descriptor.h"
#include "checkpoint/agent_folder.h"

namespace smon_rt {
namespace {

constexpr std::size_t kMaxReasonBytes = 200;
constexpr std::size_t kMaxFileBytes = std::size_t{1} << 20;

}  // namespace

std::vector<TriedMarks::Mark> TriedFile::read() const {
  const OwnedDescriptor file(move_from_standard_streams(
      ::openat(folder_fd_, AgentFolder::kTriedName, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)));
  std::vector<TriedMarks::Mark> marks;
  if (!file.is_open()) return marks;
  std::string text;
  std::array<char, 4096> piece{};
  for (ssize_t got = 0; text.size() < kMaxFileBytes && (got = ::read(file.fd(), piece.data(), piece.size())) > 0;) {
    text.append(piece.data(), static_cast<std::size_t>(got));
  }
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    TriedMarks::Mark mark;
    if (!(words >> mark.label.incarnation >> mark.label.step)) continue;
    words.get();
    std::getline(words, mark.reason);
    marks.push_back(std::move(mark));
  }
  return marks;
}

Result<void> TriedFile::add(Label label, std::string_view reason) {
  std::string line = std::to_string(label.incarnation) + " " + std::to_string(label.step) + " " +
                     std::string(reason.substr(0, kMaxReasonBytes));
  std::ranges::replace_if(line, [](unsigned char c) { return c < ' '; }, ' ');
  line += '\n';
  const OwnedDescriptor file(move_from_standard_streams(
      ::openat(folder_fd_, AgentFolder::kTriedName, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600)));
  const bool is_written = file.is_open() &&
                          ::write(file.fd(), line.data(), line.size()) == static_cast<ssize_t>(line.size()) &&
                          ::fsync(file.fd()) == 0 && ::fsync(folder_fd_) == 0;
  if (is_written) return {};
  return Error{"mark of a rejected state: " + std::generic_category().message(errno)};
}

}  // namespace smon_rt
