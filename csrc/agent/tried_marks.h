#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/slot_format.h"

namespace smon_rt {

/// States that are not chosen again: rejected after they were loaded, or loaded `max_loads` times without a newer one
/// becoming agreed.
///
/// Threading: none of its own.
class TriedMarks {
 public:
  struct Mark {
    Label label;
    std::string reason;
  };

  explicit TriedMarks(std::uint32_t max_loads) : max_loads_(max_loads) {}

  /// Whether it is new.
  bool mark(Label label, std::string reason);
  /// The job goes on from this state once more.
  void count_load(Label label);
  /// A restart begins: marks what has been loaded too often.
  std::vector<Mark> mark_worn();
  /// A newer state is agreed: what was loaded before was good.
  void forget_loads_before(Label agreed);

  bool contains(Label label) const { return marks_.contains(label); }
  /// "" if it is not marked.
  std::string reason(Label label) const;
  std::vector<Mark> all() const;

 private:
  std::uint32_t max_loads_;
  std::map<Label, std::string> marks_;
  std::map<Label, std::uint32_t> loads_;
};

}  // namespace smon_rt
