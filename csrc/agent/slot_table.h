#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <vector>

#include "checkpoint/slot_format.h"

namespace smon_rt {

/// Of an own copy, in this order.
enum class Stage : std::uint8_t {
  kPromised,  // the slot is kept for it
  kWriting,   // the trainer copies into the slot
  kCopied,    // complete, not yet hashed
  kCaptured   // complete and hashed
};

struct OwnCopy {
  Label label;
  Stage stage = Stage::kPromised;
  std::uint32_t slot = 0;

  friend bool operator==(const OwnCopy&, const OwnCopy&) = default;
};

/// Its trainer has yet to finish it.
inline bool is_under_way(const OwnCopy& copy) {
  return copy.stage < Stage::kCopied;
}

/// The slots of one owner and the copies in them. Slots are numbered from 0 and a number is never used twice: what
/// comes late of a slot that is gone finds nothing.
///
/// Threading: none of its own.
class SlotTable {
 public:
  /// Slots for states of this size: those there are, where the size is the same, and new ones up to `count`. The others
  /// are retired: they end once they hold nothing.
  std::vector<std::uint32_t> reserve(std::uint32_t layout_epoch, std::uint64_t content_bytes, std::size_t count);
  /// A slot that a trainer brings, with the captured copy in it or none. False: there is one of this number.
  bool adopt(std::uint32_t slot, std::uint32_t layout_epoch, std::uint64_t content_bytes, std::optional<Label> label);

  /// Keeps a free slot of the current layout for this step.
  std::optional<std::uint32_t> promise(Label label);
  /// Puts a captured copy into a free slot.
  std::optional<std::uint32_t> add_captured(Label label);
  /// From one stage to the next; false where no such copy is.
  bool move_on(Label label, std::uint32_t slot, Stage before, Stage after);
  /// Forgets what `gone` says.
  void drop_if(const std::function<bool(const OwnCopy&)>& gone);
  /// The same, and the slots with it: another process may still write there.
  void abandon_if(const std::function<bool(const OwnCopy&)>& gone);

  std::optional<OwnCopy> find(Label label) const;
  std::vector<OwnCopy> copies() const;  // by label
  std::set<Label> captured() const;

  std::uint32_t layout_epoch() const noexcept { return layout_epoch_; }
  std::uint64_t content_bytes() const noexcept { return content_bytes_; }
  std::size_t slot_count() const noexcept { return slots_.size(); }
  /// Those that have ended since the last call: nobody needs their memory any more.
  std::vector<std::uint32_t> take_ended();

 private:
  struct Slot {
    std::uint32_t number = 0;
    bool is_retired = false;
    std::optional<Label> label;
    Stage stage = Stage::kPromised;
  };

  Slot* free_slot();
  void end_retired();

  std::uint32_t layout_epoch_ = 0;
  std::uint64_t content_bytes_ = 0;
  std::uint32_t next_number_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> ended_;
};

}  // namespace smon_rt
