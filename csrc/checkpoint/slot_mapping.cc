#include "checkpoint/slot_mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

namespace smon_rt {

Result<std::shared_ptr<SlotMapping>> SlotMapping::map(OwnedDescriptor fd, std::uint64_t content_bytes,
                                                      bool is_writable) {
  struct stat status{};
  if (!fd.is_ours(&status)) return Error{"checkpoint slot: the agent gave no descriptor of it"};
  constexpr std::uint64_t kMaxBytes = std::uint64_t{1} << 46;
  if (content_bytes > kMaxBytes || status.st_size < 0 ||
      static_cast<std::uint64_t>(status.st_size) < slot_file_bytes(content_bytes)) {
    return Error{"checkpoint slot: its file has " + std::to_string(status.st_size) + " bytes, too few for a state of " +
                 std::to_string(content_bytes)};
  }
  const std::size_t length = slot_file_bytes(content_bytes);
  const int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
  const int flags = is_writable ? MAP_SHARED | MAP_POPULATE : MAP_SHARED;
  void* address = ::mmap(nullptr, length, protection, flags, fd.fd(), 0);
  if (address == MAP_FAILED) {
    std::array<char, 128> buffer{};
    return Error{"checkpoint slot: cannot map " + std::to_string(length) +
                 " bytes: " + ::strerror_r(errno, buffer.data(), buffer.size())};
  }
  ::madvise(address, length, MADV_DONTFORK);
  ::madvise(address, length, MADV_DONTDUMP);
  return std::shared_ptr<SlotMapping>(new SlotMapping(std::move(fd), {static_cast<std::byte*>(address), length},
                                                      static_cast<std::size_t>(content_bytes)));
}

Result<std::shared_ptr<SlotMapping>> SlotMapping::map_writable(OwnedDescriptor fd, std::uint64_t content_bytes) {
  return map(std::move(fd), content_bytes, true);
}

Result<std::shared_ptr<SlotMapping>> SlotMapping::map_readable(OwnedDescriptor fd, std::uint64_t content_bytes) {
  return map(std::move(fd), content_bytes, false);
}

SlotMapping::~SlotMapping() {
  ::munmap(bytes_.data(), bytes_.size());
}

}  // namespace smon_rt
