#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "analysis/arrow_c_data.h"
#include "base/result.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// Sizes of the job's parallel dimensions. world = dp · pp · tp · cp.
struct JobLayout {
  std::int32_t dp_size = 1;
  std::int32_t pp_size = 1;
  std::int32_t tp_size = 1;
  std::int32_t cp_size = 1;
  std::int32_t vpp_size = 1;
  std::int32_t world_size = 1;
};

/// One row per recorded op, borrowed from the caller's Arrow batch. Row order is free.
/// chunk, global_chunk and microbatch are -1 where they do not apply.
struct OpColumns {
  std::span<const std::int32_t> dp_rank;
  std::span<const std::int32_t> stage;
  std::span<const std::int32_t> rank;
  std::span<const std::int64_t> step;
  std::span<const std::uint8_t> kind;
  std::span<const std::int64_t> start_ns;
  std::span<const std::int64_t> duration_ns;
  std::span<const std::int32_t> seq_id;
  std::span<const std::int32_t> chunk;
  std::span<const std::int32_t> global_chunk;
  std::span<const std::int32_t> microbatch;
  // Only the rules of our own ids read these; each is empty where the batch has no such column.
  /// Ops of one step with the same id >= 0 communicate with each other; -1: no partner recorded.
  std::span<const std::int64_t> group_id = {};
  /// When the op's worker began the step; without it a step begins with its first op.
  std::span<const std::int64_t> step_start_ns = {};
  /// Who saw a communication end: 0 nobody, so that its end says nothing; kWaitedByCompute the thread that computes;
  /// any other value somebody else.
  std::span<const std::uint8_t> is_waited = {};
  static constexpr std::uint8_t kWaitedByCompute = 1;
  /// The communicator of a collective by a number that members of its kind of group share: the same op has the same in
  /// all lanes. -1: not recorded.
  std::span<const std::int32_t> communicator = {};
  /// Which one a collective is among those of its communicator, kind and step, however many of them are lost; -1: not
  /// recorded.
  std::span<const std::int32_t> communicator_number = {};
  /// What of a compute's duration is the lateness of one of its worker's tp or cp members; 0 where there is none.
  std::span<const std::int64_t> member_excess_ns = {};

  std::size_t size() const { return step.size(); }
};

/// Views the columns of a struct array (a record batch) without copying.
/// The spans live as long as `array` is not released. Errors: a column (other than group_id) is missing, of another
/// type, or has nulls.
Result<OpColumns> view_arrow_columns(const ArrowSchema& schema, const ArrowArray& array);

/// Checks what no later stage may have to doubt: ranks and stages inside the layout, known kinds, sequence numbers
/// >= 0, durations >= 0, times that add without overflow, each rank in one worker. Errors name the row.
Result<void> validate_columns(const OpColumns& columns, const JobLayout& layout);

}  // namespace smon_rt::analysis
