#pragma once

#include <cstdint>

namespace smon_rt {

/// What a library of collectives carries for us between its callbacks, in the place of a pointer: a number that is
/// checked whenever it comes back, and never followed. 0: nothing was begun.
///
/// 16 bits of a nonce of this process, 4 of type, 12 that the type may use, 16 of generation, 16 of index. The nonce:
/// with NCCL's PXN, handles of another process come here, and would name something of ours by index and generation.
using CommHandle = std::uint64_t;

namespace comm_handle {

enum class Type : std::uint8_t {
  kInert = 0,  // a context that is not null and means nothing
  kCommunicator = 1,
  kGroup = 2,  // has no slot: its number is all there is
  kCall = 3,
  kOp = 4,
  kTransfer = 5,
  kTransferStep = 6,  // index and generation are those of its transfer
  kKernel = 7,
};

constexpr CommHandle make(std::uint16_t nonce, Type type, std::uint64_t number_in_pool, std::uint64_t pool_size,
                          std::uint32_t extra = 0) {
  return std::uint64_t{nonce} << 48 | static_cast<std::uint64_t>(type) << 44 | std::uint64_t{extra & 0xfff} << 32 |
         (number_in_pool / pool_size & 0xffff) << 16 | number_in_pool % pool_size;
}
constexpr std::uint16_t nonce_of(CommHandle handle) {
  return static_cast<std::uint16_t>(handle >> 48);
}
constexpr Type type_of(CommHandle handle) {
  return static_cast<Type>(handle >> 44 & 0xf);
}
constexpr std::uint32_t extra_of(CommHandle handle) {
  return static_cast<std::uint32_t>(handle >> 32 & 0xfff);
}
constexpr std::uint32_t index_of(CommHandle handle) {
  return static_cast<std::uint32_t>(handle & 0xffff);
}
/// What a slot has while it is this handle's: never 0.
constexpr std::uint32_t ticket_of(CommHandle handle) {
  return static_cast<std::uint32_t>(handle >> 16 & 0xffff) + 1;
}
/// The same handle as another type.
constexpr CommHandle as(CommHandle handle, Type type, std::uint32_t extra) {
  return (handle & 0xffff'0000'ffff'ffff) | static_cast<std::uint64_t>(type) << 44 | std::uint64_t{extra & 0xfff} << 32;
}

}  // namespace comm_handle

}  // namespace smon_rt
