#include "analysis/lane_table.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "analysis/step_index.h"

namespace smon_rt::analysis {
namespace {

constexpr double kUnset = -1e300;

/// (kind, stage, seq_id) to op of the template lane.
class OpLookup {
 public:
  /// Errors: an op twice; a seq_id that cannot be the launch index it is meant to be.
  static Result<OpLookup> build(const std::vector<RecordedOp>& ops, std::int32_t pp_size) {
    OpLookup lookup(static_cast<std::size_t>(pp_size));
    std::size_t cell_count = 0;
    for (OpIndex i = 0; i < ops.size(); ++i) {
      std::vector<OpIndex>& by_seq_id = lookup.at(static_cast<std::size_t>(ops[i].op.kind), ops[i].op.stage);
      const auto seq_id = static_cast<std::size_t>(ops[i].op.seq_id);
      if (seq_id >= by_seq_id.size()) {
        cell_count += seq_id + 1 - by_seq_id.size();
        // The sum keeps the table from outgrowing the rows: each kind and stage may have its own hole.
        if (seq_id >= ops.size() || cell_count > kMaxCellsPerOp * ops.size()) {
          return Error{describe(ops[i].op) + " has a seq_id beyond the " + std::to_string(ops.size()) +
                       " ops of its step"};
        }
        by_seq_id.resize(seq_id + 1, kNone);
      }
      if (by_seq_id[seq_id] != kNone) return Error{describe(ops[i].op) + " is recorded twice"};
      by_seq_id[seq_id] = i;
    }
    return lookup;
  }

  static constexpr OpIndex kNone = std::numeric_limits<OpIndex>::max();

  OpIndex find(std::uint8_t kind, std::int32_t stage, std::int32_t seq_id) {
    const std::vector<OpIndex>& by_seq_id = at(kind, stage);
    return static_cast<std::size_t>(seq_id) < by_seq_id.size() ? by_seq_id[static_cast<std::size_t>(seq_id)] : kNone;
  }

 private:
  // Enough for a recorder that numbers the ops of all kinds of a stage together.
  static constexpr std::size_t kMaxCellsPerOp = kKindCount;

  explicit OpLookup(std::size_t pp_size) : pp_size_(pp_size), table_(kKindCount * pp_size) {}

  std::vector<OpIndex>& at(std::size_t kind, std::int32_t stage) {
    return table_[kind * pp_size_ + static_cast<std::size_t>(stage)];
  }

  std::size_t pp_size_;
  std::vector<std::vector<OpIndex>> table_;
};

Op op_of_row(const OpColumns& c, std::size_t row) {
  return {static_cast<Kind>(c.kind[row]),
          c.stage[row],
          c.seq_id[row],
          c.chunk[row],
          c.global_chunk[row],
          c.microbatch[row]};
}

std::vector<RecordedOp> template_of(const OpColumns& c, std::int64_t first_step) {
  std::vector<RecordedOp> ops;
  for (std::size_t row = 0; row < c.size(); ++row) {
    if (c.step[row] != first_step || c.dp_rank[row] != 0) continue;
    ops.push_back({op_of_row(c, row), c.start_ns[row], c.start_ns[row] + c.duration_ns[row]});
  }
  return ops;
}

std::string in_lane(std::int32_t dp_rank, std::int64_t step) {
  return " in dp rank " + std::to_string(dp_rank) + ", step " + std::to_string(step);
}

std::vector<std::int64_t> first_starts(const OpColumns& c, StepIndex& step_index) {
  std::vector<std::int64_t> starts(step_index.steps().size(), std::numeric_limits<std::int64_t>::max());
  for (std::size_t row = 0; row < c.size(); ++row) {
    std::int64_t& start = starts[step_index.of(c.step[row])];
    start = std::min(start, c.start_ns[row]);
  }
  return starts;
}

struct LaneSize {
  std::size_t lane = 0;
  std::size_t rows = 0;
};

// The first lane that has not `op_count` rows, when there is one. Sorts instead of counting per lane: there may be far
// more lanes than rows.
LaneSize first_wrong_lane(std::vector<std::size_t> lane_of_row, std::size_t op_count) {
  std::sort(lane_of_row.begin(), lane_of_row.end());
  LaneSize size;
  for (auto row = lane_of_row.begin();; ++size.lane) {
    const auto next = std::find_if(row, lane_of_row.end(), [&](std::size_t lane) { return lane != size.lane; });
    size.rows = static_cast<std::size_t>(next - row);
    if (size.rows != op_count) return size;
    row = next;
  }
}

// Called when the rows are not lanes x ops: names a lane of the wrong size and, where it can, the op that it lacks.
Error name_incomplete_lane(const OpColumns& c, StepIndex& step_index, std::size_t dp_size,
                           const std::vector<RecordedOp>& ops, OpLookup& lookup) {
  std::vector<std::size_t> lane_of_row(c.size());
  for (std::size_t row = 0; row < c.size(); ++row) {
    lane_of_row[row] = step_index.of(c.step[row]) * dp_size + static_cast<std::size_t>(c.dp_rank[row]);
  }
  const auto [lane, rows] = first_wrong_lane(lane_of_row, ops.size());
  std::string text = std::to_string(rows) + " ops" +
                     in_lane(static_cast<std::int32_t>(lane % dp_size), step_index.steps()[lane / dp_size]) + ", but " +
                     std::to_string(ops.size()) + in_lane(0, step_index.steps().front());
  std::vector<bool> seen(ops.size(), false);
  for (std::size_t row = 0; row < c.size(); ++row) {
    if (lane_of_row[row] != lane) continue;
    const OpIndex op = lookup.find(c.kind[row], c.stage[row], c.seq_id[row]);
    const std::string name = describe(op_of_row(c, row));
    if (op == OpLookup::kNone) return Error{text + ": the former alone has " + name};
    if (seen[op]) return Error{text + ": the former has " + name + " twice"};
    seen[op] = true;
  }
  const auto missing = std::find(seen.begin(), seen.end(), false);
  return Error{text + ": the former lacks " + describe(ops[static_cast<std::size_t>(missing - seen.begin())].op)};
}

}  // namespace

Result<LaneTable> LaneTable::build(const OpColumns& columns, const JobLayout& layout) {
  LaneTable table;
  auto ranks = ranks_of_workers(columns, layout);
  if (!ranks) return ranks.error();
  table.worker_ranks_ = std::move(*ranks);
  StepIndex step_index(columns.step);
  table.steps_ = step_index.steps();
  table.dp_size_ = static_cast<std::size_t>(layout.dp_size);
  table.template_ops_ = template_of(columns, table.steps_.front());
  if (table.template_ops_.empty()) {
    return Error{"dp rank 0 has no ops in step " + std::to_string(table.steps_.front()) + ", the first one"};
  }
  auto lookup = OpLookup::build(table.template_ops_, layout.pp_size);
  if (!lookup) return Error{lookup.error().message + in_lane(0, table.steps_.front())};
  const std::size_t lanes = table.lane_count();
  if (lanes > columns.size() || lanes * table.op_count() != columns.size()) {
    return name_incomplete_lane(columns, step_index, table.dp_size_, table.template_ops_, *lookup);
  }

  const std::vector<std::int64_t> step_starts = first_starts(columns, step_index);
  table.starts_ns_ = LaneBuffer(columns.size());
  table.ends_ns_ = LaneBuffer(columns.size());
  std::fill_n(table.starts_ns_.data(), columns.size(), kUnset);
  table.step_times_ns_.assign(table.steps_.size(), 0);
  for (std::size_t row = 0; row < columns.size(); ++row) {
    const OpIndex op = lookup->find(columns.kind[row], columns.stage[row], columns.seq_id[row]);
    if (op == OpLookup::kNone) {
      return Error{describe(op_of_row(columns, row)) + in_lane(columns.dp_rank[row], columns.step[row]) +
                   " is not in dp rank 0's first step"};
    }
    const std::size_t step = step_index.of(columns.step[row]);
    const std::size_t cell = op * lanes + step * table.dp_size_ + static_cast<std::size_t>(columns.dp_rank[row]);
    if (table.starts_ns_.data()[cell] != kUnset) {
      return Error{describe(op_of_row(columns, row)) + in_lane(columns.dp_rank[row], columns.step[row]) +
                   " is recorded twice"};
    }
    const auto start = static_cast<double>(columns.start_ns[row] - step_starts[step]);
    const double end = start + static_cast<double>(columns.duration_ns[row]);
    table.starts_ns_.data()[cell] = start;
    table.ends_ns_.data()[cell] = end;
    table.step_times_ns_[step] = std::max(table.step_times_ns_[step], end);
  }
  return table;
}

}  // namespace smon_rt::analysis
