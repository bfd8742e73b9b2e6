#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "cuda/driver_types.h"

namespace smon_rt::cuda {

/// The events of one context, which of them are in use, and by how many.
///
/// Threading: any thread, lock-free; the handles are set before the pool is shown to others.
/// When full: take() gives nothing.
class EventPool {
 public:
  static constexpr std::size_t kMaxEvents = 1 << 16;

  /// Of an event in use: a name that is never used again, since the generation is another one each time.
  struct Name {
    std::uint32_t index = 0;
    std::uint32_t generation = 0;
  };

  EventPool(Handle context, Device device, std::size_t event_count, std::string device_uuid = {});

  Handle context() const { return context_; }
  Device device() const { return device_; }
  const std::string& device_uuid() const { return device_uuid_; }
  std::size_t size() const { return size_; }
  Handle& handle(std::uint32_t index) { return events_[index].handle; }

  /// An event that nobody else has until put_in_use() or put_back().
  std::optional<std::uint32_t> take() noexcept;
  Name put_in_use(std::uint32_t index) noexcept;
  void put_back(std::uint32_t index) noexcept;

  bool is_in_use(Name name) const noexcept;
  /// One more owner; false if it has none any more.
  bool retain(Name name) noexcept;
  /// One owner fewer; the last one's event is free again. Names that are not in use are ignored.
  void release(Name name) noexcept;

 private:
  struct Event {
    Handle handle = nullptr;
    std::atomic<std::uint64_t> state{0};  // generation << 32 | owners
    std::atomic<std::uint32_t> next{0};   // of the free ones: index + 1, 0 for the last
  };
  bool add_owners(Name name, int count, std::uint32_t* left) noexcept;

  Handle context_;
  Device device_;
  std::string device_uuid_;
  std::size_t size_;
  std::unique_ptr<Event[]> events_;
  // A stack: changes << 32 | index + 1 of its top. The count of changes tells a top that went and came back apart.
  std::atomic<std::uint64_t> free_{0};
};

}  // namespace smon_rt::cuda
