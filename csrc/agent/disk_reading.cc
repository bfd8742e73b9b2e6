#include "agent/disk_reading.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <system_error>
#include <utility>
#include <vector>

#include "agent/content_hash.h"
#include "base/owned_descriptor.h"

namespace smon_rt {
namespace {

// A manifest has 20 bytes a chunk: this is room for 13 TB.
constexpr std::size_t kMaxManifestBytes = std::size_t{64} << 20;

Error error_of(const std::string& path, const std::string& what) {
  return Error{"checkpoints on disk: " + path + ": " + what};
}

/// O_NONBLOCK: a pipe in place of the file must not be waited for.
OwnedDescriptor open_file(const std::string& path) {
  return OwnedDescriptor(
      move_from_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)));
}

/// Fills `into`, less at the end of the file only.
Result<std::size_t> read_full(const OwnedDescriptor& file, std::span<std::byte> into, const std::string& path) {
  std::size_t filled = 0;
  while (filled < into.size()) {
    const ssize_t got = ::read(file.fd(), into.data() + filled, into.size() - filled);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error_of(path, std::generic_category().message(errno));
    if (got == 0) break;
    filled += static_cast<std::size_t>(got);
  }
  return filled;
}

Result<void> write_full(int fd, std::span<const std::byte> bytes, std::size_t offset) {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Error{"memory of a checkpoint: " + std::generic_category().message(errno)};
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
  return {};
}

using Take = std::function<Result<void>(std::span<const std::byte> chunk, std::size_t offset)>;

/// Hands each chunk on once its hash was found right.
Result<void> read_shard(const std::string& path, const DiskShard& shard, const Take& take) {
  const OwnedDescriptor file = open_file(path);
  if (!file.is_open()) return error_of(path, std::generic_category().message(errno));
  struct stat status{};
  if (!file.is_ours(&status) || !S_ISREG(status.st_mode)) return error_of(path, "is no file");
  if (std::cmp_not_equal(status.st_size, shard.content_bytes)) {
    return error_of(
        path, std::to_string(status.st_size) + " bytes, and its manifest says " + std::to_string(shard.content_bytes));
  }
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kChunkBytes, shard.content_bytes));
  for (std::size_t i = 0; i < shard.chunk_hashes.size(); ++i) {
    const std::size_t offset = i * kChunkBytes;
    const std::span chunk(buffer.data(), std::min<std::uint64_t>(kChunkBytes, shard.content_bytes - offset));
    const auto got = read_full(file, chunk, path);
    if (!got) return got.error();
    std::array<std::uint64_t, 1> hash{};
    if (*got == chunk.size()) hash_content(chunk, hash);
    if (*got != chunk.size() || hash[0] != shard.chunk_hashes[i]) {
      return error_of(path, "bytes from " + std::to_string(offset) + " on are not what was captured (chunk " +
                                std::to_string(i) + ")");
    }
    if (auto taken = take(chunk, offset); !taken) return taken;
  }
  return {};
}

template <std::size_t N>
void put_text(char (&field)[N], const std::string& text) {
  std::memcpy(field, text.data(), std::min(text.size(), N));
}

Result<void> write_header(const SlotMemory& memory, const DiskManifest& manifest, const DiskShard& shard) {
  SlotHeader header{};
  header.magic = kSlotMagic;
  header.format = 1;
  header.generation.store(2, std::memory_order_relaxed);
  header.step = manifest.label.step;
  header.incarnation = manifest.label.incarnation;
  header.content_bytes = shard.content_bytes;
  header.content_hash.store(shard.content_hash, std::memory_order_relaxed);
  put_text(header.run_id, manifest.run_id);
  put_text(header.owner, shard.owner);
  put_text(header.topology, shard.topology);
  return write_full(memory.fd(), std::as_bytes(std::span(&header, 1)), 0);
}

}  // namespace

Result<std::string> read_small_file(const std::string& path) {
  const OwnedDescriptor file = open_file(path);
  if (!file.is_open()) return errno == ENOENT ? Error{""} : error_of(path, std::generic_category().message(errno));
  struct stat status{};
  if (!file.is_ours(&status) || !S_ISREG(status.st_mode)) return error_of(path, "is no file");
  if (std::cmp_greater(status.st_size, kMaxManifestBytes)) return error_of(path, "too large");
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const auto got = read_full(file, std::as_writable_bytes(std::span(text)), path);
  if (!got) return got.error();
  text.resize(*got);
  return text;
}

Result<std::shared_ptr<SlotMemory>> load_shard(const std::string& path, const DiskManifest& manifest,
                                               const DiskShard& shard) {
  auto memory = SlotMemory::make(shard.content_bytes);
  if (!memory) return memory;
  const int fd = (*memory)->fd();
  auto loaded = read_shard(path, shard, [fd](std::span<const std::byte> chunk, std::size_t offset) {
    return write_full(fd, chunk, kContentOffset + offset);
  });
  if (!loaded) return loaded.error();
  const auto hashes = std::as_bytes(std::span(shard.chunk_hashes));
  if (auto written = write_full(fd, hashes, hashes_offset(shard.content_bytes)); !written) return written.error();
  // Last, as a trainer does it.
  if (auto written = write_header(**memory, manifest, shard); !written) return written.error();
  return memory;
}

Result<void> verify_shard(const std::string& path, const DiskShard& shard) {
  return read_shard(path, shard, [](std::span<const std::byte>, std::size_t) { return Result<void>(); });
}

}  // namespace smon_rt
