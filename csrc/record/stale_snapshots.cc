#include "record/stale_snapshots.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/owned_descriptor.h"
#include "base/process_state.h"
#include "format/trace_reader.h"
#include "record/arena.h"
#include "record/leftovers.h"
#include "record/trace_file.h"

namespace smon_rt {
namespace {

// Identity comes first, and is a few KB; a snapshot with all that is open may be longer.
constexpr std::size_t kReadBytes = std::size_t{1} << 20;

class FirstIdentity final : public TraceVisitor {
 public:
  void on_identity(const TraceIdentity& identity) override {
    if (!identity_) identity_ = identity;
  }
  std::optional<TraceIdentity> identity_;
};

struct Snapshot {
  TraceIdentity identity;
  std::int64_t written_s = 0;
};

std::optional<Snapshot> read_snapshot(const std::string& path) {
  const OwnedDescriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  struct stat status{};
  if (!file.is_ours(&status) || !S_ISREG(status.st_mode)) return std::nullopt;
  std::vector<std::byte> bytes(std::min<std::size_t>(static_cast<std::size_t>(status.st_size), kReadBytes));
  const ssize_t count = ::pread(file.fd(), bytes.data(), bytes.size(), 0);
  if (count <= 0) return std::nullopt;
  FirstIdentity first;
  read_trace(std::span(bytes).first(static_cast<std::size_t>(count)), {}, first);
  if (!first.identity_) return std::nullopt;
  return Snapshot{*std::move(first.identity_), status.st_mtime};
}

bool has_live_arena(const TraceIdentity& identity, const std::string& directory) {
  return std::ranges::any_of(Arena::file_names(identity.run_id, identity.attempt, identity.rank),
                             [&](const std::string& name) {
                               const auto owner = find_arena_owner(directory + "/" + name);
                               return owner && owner->pid == identity.pid && owner->pid != ::getpid();
                             });
}

bool is_stale(const Snapshot& snapshot, const StaleSnapshotOptions& options) {
  const TraceIdentity& identity = snapshot.identity;
  if (identity.boot_id != boot_id() || identity.host != host_name()) {
    return options.now_s - snapshot.written_s > options.oldest_s;
  }
  // Of this very process: of the image before exec(), or of the recording before this one.
  if (identity.pid == ::getpid() && identity.process_start_ticks == process_start_ticks(identity.pid)) return true;
  return !is_process_alive(identity.pid, identity.process_start_ticks) &&
         !has_live_arena(identity, options.arena_directory);
}

}  // namespace

std::uint32_t remove_stale_snapshots(const StaleSnapshotOptions& options) {
  if (options.trace_directory.empty()) return 0;
  // The stem up to the run: rank-00003.
  const std::string stem = trace_file_stem("", 0, options.rank);
  const std::string_view prefix = std::string_view(stem).substr(0, stem.find('.') + 1);
  std::vector<std::string> paths;
  {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(options.trace_directory.c_str()), &::closedir);
    if (folder == nullptr) return 0;
    while (const dirent* entry = ::readdir(folder.get())) {
      const std::string_view name = entry->d_name;
      if (name.starts_with(prefix) && name.ends_with(".live")) {
        paths.push_back(options.trace_directory + "/" + std::string(name));
      }
    }
  }
  std::uint32_t removed = 0;
  for (const std::string& path : paths) {
    const std::optional<Snapshot> snapshot = read_snapshot(path);
    if (!snapshot || snapshot->identity.rank != options.rank || !is_stale(*snapshot, options)) continue;
    if (::unlink(path.c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace smon_rt
