#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "checkpoint/agent_client.h"
#include "checkpoint/gpu_copier.h"
#include "checkpoint/slot_mapping.h"

namespace smon_rt {

/// The slots that the agent gave this rank, mapped: those of the current layout, and those of the one before, which
/// hold the newest agreed state until the agent says that a newer one is agreed.
///
/// Threading: the helper thread; close_in_child in a forked child.
class SlotSet {
 public:
  explicit SlotSet(GpuCopier& copier) : copier_(copier) {}
  ~SlotSet() { clear(); }
  SlotSet(const SlotSet&) = delete;
  SlotSet& operator=(const SlotSet&) = delete;

  /// Slots of a new layout, in the order of their numbers. `is_for_gpu`: page-locked, too.
  Result<void> add(std::uint32_t epoch, std::uint64_t content_bytes, const std::vector<std::uint32_t>& numbers,
                   std::vector<OwnedDescriptor> descriptors, bool is_for_gpu);
  /// Null: not one of that layout.
  std::shared_ptr<SlotMapping> find(std::uint32_t number, std::uint32_t epoch) const;
  bool has_older_than(std::uint32_t epoch) const;
  void drop_older_than(std::uint32_t epoch);
  void clear();
  bool empty() const { return slots_.empty(); }
  /// What an agent that was started anew is told, one message an epoch.
  std::vector<AgentClient::Request> adoptions() const;

  void close_in_child() noexcept;

 private:
  struct Slot {
    std::uint32_t epoch = 0;
    std::uint64_t content_bytes = 0;
    std::shared_ptr<SlotMapping> mapping;
    bool is_registered = false;
  };
  void let_go(Slot& slot);
  void publish_descriptors();

  GpuCopier& copier_;
  std::map<std::uint32_t, Slot> slots_;
  std::array<std::atomic<int>, 16> descriptors_{};  // 0: none
};

}  // namespace smon_rt
