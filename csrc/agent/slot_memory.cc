#include "agent/slot_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>
#include <vector>

#include "agent/content_hash.h"
#include "agent/memory_budget.h"

namespace smon_rt {
namespace {

// Larger than any node's memory; keeps sums of sizes from overflowing.
constexpr std::uint64_t kMaxContentBytes = std::uint64_t{1} << 46;

Error error_of_errno(const std::string& what, int error_number) {
  return Error{"memory of a checkpoint: " + what + ": " + std::generic_category().message(error_number)};
}

Result<void> check_size(std::uint64_t content_bytes) {
  if (content_bytes > 0 && content_bytes <= kMaxContentBytes) return {};
  return Error{"memory of a checkpoint: " + std::to_string(content_bytes) + " bytes is no size of a state"};
}

/// What is in an array of the header, up to its first zero.
template <std::size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, ::strnlen(field, N));
}

}  // namespace

Result<std::shared_ptr<SlotMemory>> SlotMemory::make(std::uint64_t content_bytes) {
  if (auto checked = check_size(content_bytes); !checked) return std::move(checked).error();
  OwnedDescriptor fd(move_from_standard_streams(::memfd_create("smon_rt-slot", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
  if (!fd.is_open()) return error_of_errno("memfd_create", errno);
  const auto bytes = static_cast<off_t>(slot_file_bytes(content_bytes));
  int failed = 0;
  do {
    failed = ::fallocate(fd.fd(), 0, 0, bytes) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed != 0) return error_of_errno("cannot take " + describe_bytes(static_cast<std::uint64_t>(bytes)), failed);
  if (::fcntl(fd.fd(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return error_of_errno("cannot seal it", errno);
  }
  return map(std::move(fd), content_bytes);
}

Result<std::shared_ptr<SlotMemory>> SlotMemory::adopt(OwnedDescriptor fd, std::uint64_t content_bytes) {
  if (auto checked = check_size(content_bytes); !checked) return std::move(checked).error();
  struct stat status{};
  if (!fd.is_ours(&status)) return Error{"memory of a checkpoint: no descriptor came with the slot"};
  const int seals = ::fcntl(fd.fd(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Error{"memory of a checkpoint: the descriptor is no memory of an agent's"};
  }
  if (std::cmp_not_equal(status.st_size, slot_file_bytes(content_bytes))) {
    return Error{"memory of a checkpoint: the slot has " + std::to_string(status.st_size) + " bytes, and a state of " +
                 std::to_string(content_bytes) + " needs " + std::to_string(slot_file_bytes(content_bytes))};
  }
  return map(std::move(fd), content_bytes);
}

Result<std::shared_ptr<SlotMemory>> SlotMemory::map(OwnedDescriptor fd, std::uint64_t content_bytes) {
  void* const data = ::mmap(nullptr, slot_file_bytes(content_bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.fd(), 0);
  if (data == MAP_FAILED) return error_of_errno("cannot map it", errno);
  return std::shared_ptr<SlotMemory>(new SlotMemory(std::move(fd), static_cast<std::byte*>(data), content_bytes));
}

SlotMemory::~SlotMemory() {
  ::munmap(data_, slot_file_bytes(content_bytes_));
}

Result<OwnedDescriptor> SlotMemory::open_for_reading() const {
  const std::string path = "/proc/self/fd/" + std::to_string(fd());
  OwnedDescriptor reading(move_from_standard_streams(::open(path.c_str(), O_RDONLY | O_CLOEXEC)));
  if (!reading.is_open()) return error_of_errno("cannot open it for reading", errno);
  return reading;
}

std::optional<SlotContent> SlotMemory::read_header() const {
  const SlotHeader& from = header();
  SlotContent content;
  content.generation = from.generation.load(std::memory_order_acquire);
  if (content.generation % 2 != 0 || from.magic != kSlotMagic || from.format != 1) return std::nullopt;
  if (from.content_bytes != content_bytes_) return std::nullopt;
  content.label = {from.incarnation, from.step};
  content.layout_epoch = from.layout_epoch;
  content.content_hash = from.content_hash.load(std::memory_order_acquire);
  content.run_id = text_of(from.run_id);
  content.owner = text_of(from.owner);
  content.topology = text_of(from.topology);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (from.generation.load(std::memory_order_relaxed) != content.generation) return std::nullopt;
  return content;
}

std::optional<std::uint64_t> SlotMemory::compute_hash(std::uint64_t generation) const {
  std::vector<std::uint64_t> chunk_hashes(chunk_count(content_bytes_));
  const std::uint64_t hash = hash_content(content(), chunk_hashes);
  std::atomic_thread_fence(std::memory_order_acquire);
  if (header().generation.load(std::memory_order_relaxed) != generation) return std::nullopt;
  return hash;
}

std::optional<std::uint64_t> SlotMemory::hash_and_store(std::uint64_t generation) {
  // Made aside, so that the hash of all is of these, whatever another process does with the slot.
  std::vector<std::uint64_t> chunk_hashes(chunk_count(content_bytes_));
  const std::uint64_t hash = hash_content(content(), chunk_hashes);
  if (header().generation.load(std::memory_order_acquire) != generation) return std::nullopt;
  std::memcpy(data_ + hashes_offset(content_bytes_), chunk_hashes.data(), chunk_hashes.size() * sizeof(std::uint64_t));
  header().content_hash.store(hash, std::memory_order_release);
  return hash;
}

}  // namespace smon_rt
