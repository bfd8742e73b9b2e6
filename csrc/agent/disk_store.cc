#include "agent/disk_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "agent/content_hash.h"
#include "agent/disk_reading.h"
#include "checkpoint/agent_folder.h"

namespace smon_rt {
namespace {

constexpr const char* kManifestName = "manifest.json";

Error error_of(const std::string& what, int error_number) {
  return Error{"checkpoints on disk: " + what + ": " + std::generic_category().message(error_number)};
}

Result<OwnedDescriptor> make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return error_of(path, errno);
  OwnedDescriptor folder(move_from_standard_streams(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)));
  if (!folder.is_open()) return error_of(path, errno);
  return folder;
}

/// The run's name as the agent's folder spells it, so that two runs never share one.
std::string run_name(const std::string& run_id) {
  const std::string path = agent_folder_path("", 0, run_id, "");
  return path.substr(path.rfind('/') + 1);
}

/// Of "step-<incarnation>-<step>"; none: a name that is not ours.
std::optional<Label> label_of(const std::string& name) {
  unsigned incarnation = 0;
  unsigned long long step = 0;
  int used = 0;
  if (std::sscanf(name.c_str(), "step-%u-%llu%n", &incarnation, &step, &used) != 2) return std::nullopt;
  const Label label{incarnation, step};
  if (name != "step-" + std::to_string(incarnation) + "-" + std::to_string(step)) return std::nullopt;
  return label;
}

/// Folders of steps, oldest first, complete or not.
Result<std::vector<Label>> labels_in(const std::string& folder) {
  std::vector<Label> labels;
  std::error_code failed;
  std::filesystem::directory_iterator entry(folder, failed);
  for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
    if (const auto label = label_of(entry->path().filename().string())) labels.push_back(*label);
  }
  if (failed && failed != std::errc::no_such_file_or_directory) return error_of(folder, failed.value());
  std::ranges::sort(labels);
  return labels;
}

/// The manifest goes first: what is left of a removal that was interrupted is no step.
Result<void> remove_step(const std::string& path) {
  if (::unlink((path + "/" + kManifestName).c_str()) != 0 && errno != ENOENT) return error_of(path, errno);
  std::error_code failed;
  std::filesystem::remove_all(path, failed);
  if (failed) return error_of(path, failed.value());
  return {};
}

}  // namespace

DiskCalls DiskCalls::of_system() {
  return {[](int fd, const void* data, std::size_t bytes) { return ::write(fd, data, bytes); },
          [](int fd) { return ::fsync(fd); }};
}

DiskStore::DiskStore(const std::string& directory, std::string run_id, DiskCalls calls)
    : run_id_(std::move(run_id)),
      directory_(directory),
      folder_(directory + "/" + run_name(run_id_)),
      calls_(std::move(calls)) {}

std::string DiskStore::step_path(Label label) const {
  return folder_ + "/step-" + std::to_string(label.incarnation) + "-" + std::to_string(label.step);
}

Result<void> DiskStore::sync(const OwnedDescriptor& folder, const std::string& path) const {
  if (calls_.sync(folder.fd()) == 0) return {};
  return error_of("cannot sync " + path, errno);
}

Result<void> DiskStore::write_file(const OwnedDescriptor& folder, const std::string& name,
                                   std::span<const std::byte> bytes) const {
  const std::string temporary = "." + name + ".tmp";
  OwnedDescriptor file(move_from_standard_streams(
      ::openat(folder.fd(), temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600)));
  if (!file.is_open()) return error_of(name, errno);
  while (!bytes.empty()) {
    const ssize_t written = calls_.write(file.fd(), bytes.data(), std::min(bytes.size(), kChunkBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return error_of("cannot write " + name, written == 0 ? ENOSPC : errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  if (calls_.sync(file.fd()) != 0) return error_of("cannot sync " + name, errno);
  if (::renameat(folder.fd(), temporary.c_str(), folder.fd(), name.c_str()) == 0) return {};
  return error_of("cannot rename " + name, errno);
}

Result<void> DiskStore::write(Label label, std::span<const StagedShard> shards) const {
  const std::string path = step_path(label);
  // What an earlier writer left of this step is not what its manifest, or ours, says.
  if (auto removed = remove_step(path); !removed) return removed;
  auto written = write_files(label, path, shards);
  if (!written) static_cast<void>(remove_step(path));  // the reason is the first failure
  return written;
}

Result<void> DiskStore::write_files(Label label, const std::string& path, std::span<const StagedShard> shards) const {
  const auto directory = make_folder(directory_);
  if (!directory) return directory.error();
  const auto run = make_folder(folder_);
  if (!run) return run.error();
  const auto step = make_folder(path);
  if (!step) return step.error();

  DiskManifest manifest{run_id_, label, {}};
  for (const StagedShard& staged : shards) {
    DiskShard shard{staged.owner,
                    std::to_string(manifest.shards.size()) + ".safetensors",
                    staged.topology,
                    staged.content.size(),
                    0,
                    std::vector<std::uint64_t>(chunk_count(staged.content.size()))};
    shard.content_hash = hash_content(staged.content, shard.chunk_hashes);
    if (staged.content_hash != 0 && staged.content_hash != shard.content_hash) {
      return Error{"checkpoints on disk: the copy of " + staged.owner + "'s step " + std::to_string(label.step) +
                   " is not what was captured: its slot was used again too soon"};
    }
    if (auto written = write_file(*step, shard.file, staged.content); !written) return written;
    manifest.shards.push_back(std::move(shard));
  }
  if (auto synced = sync(*step, path); !synced) return synced;
  const std::string text = encode_disk_manifest(manifest);
  if (auto written = write_file(*step, kManifestName, std::as_bytes(std::span(text))); !written) return written;
  if (auto synced = sync(*step, path); !synced) return synced;
  if (auto synced = sync(*run, folder_); !synced) return synced;
  return sync(*directory, directory_);
}

Result<void> DiskStore::remove_incomplete(Label before) const {
  const auto labels = labels_in(folder_);
  if (!labels) return labels.error();
  for (const Label label : *labels) {
    if (label >= before) break;
    const std::string path = step_path(label);
    // A manifest that cannot be read, or is damaged, is for a person to look at.
    if (::access((path + "/" + kManifestName).c_str(), F_OK) == 0 || errno != ENOENT) continue;
    if (auto removed = remove_step(path); !removed) return removed;
  }
  return {};
}

Result<DiskListing> DiskStore::list() const {
  const auto labels = labels_in(folder_);
  if (!labels) return labels.error();
  DiskListing listing;
  for (const Label label : *labels) {
    const std::string path = step_path(label) + "/" + kManifestName;
    const auto text = read_small_file(path);
    if (!text && text.error().message.empty()) continue;  // incomplete
    auto manifest = text ? decode_disk_manifest(*text) : Result<DiskManifest>(text.error());
    if (manifest && (manifest->label != label || manifest->run_id != run_id_)) {
      manifest = Error{"of another step or run"};
    }
    if (manifest) {
      listing.steps.push_back(std::move(*manifest));
    } else {
      listing.problems.push_back(path + ": " + manifest.error().message);
    }
  }
  return listing;
}

Result<void> DiskStore::remove_older(std::size_t keep) const {
  const auto listing = list();
  if (!listing) return listing.error();
  if (keep == 0 || listing->steps.size() < keep) return {};
  const Label oldest_kept = listing->steps[listing->steps.size() - keep].label;
  const auto labels = labels_in(folder_);
  if (!labels) return labels.error();
  for (const Label label : *labels) {
    if (label >= oldest_kept) break;
    if (auto removed = remove_step(step_path(label)); !removed) return removed;
  }
  return {};
}

Result<std::shared_ptr<SlotMemory>> DiskStore::load(const std::string& owner, Label label) const {
  const auto listing = list();
  if (!listing) return listing.error();
  for (const DiskManifest& manifest : listing->steps) {
    if (manifest.label != label) continue;
    const auto shard = std::ranges::find(manifest.shards, owner, &DiskShard::owner);
    if (shard != manifest.shards.end()) return load_shard(step_path(label) + "/" + shard->file, manifest, *shard);
  }
  return Error{"checkpoints on disk: " + folder_ + " has no complete copy of " + owner + "'s " + to_text(label)};
}

Result<void> DiskStore::verify(const DiskManifest& manifest, const DiskShard& shard) const {
  return verify_shard(step_path(manifest.label) + "/" + shard.file, shard);
}

}  // namespace smon_rt
