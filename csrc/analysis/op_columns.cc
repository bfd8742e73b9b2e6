#include "analysis/op_columns.h"

#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace smon_rt::analysis {
namespace {

// Beyond these an index table sized by the largest value would no longer be proportional to the rows.
constexpr std::int32_t kMaxSeqId = 1 << 20;
constexpr std::int64_t kMaxTimeNs = std::numeric_limits<std::int64_t>::max() / 4;

template <typename T>
constexpr std::string_view kArrowFormat = "";
template <>
constexpr std::string_view kArrowFormat<std::int32_t> = "i";
template <>
constexpr std::string_view kArrowFormat<std::int64_t> = "l";
template <>
constexpr std::string_view kArrowFormat<std::uint8_t> = "C";

bool has_nulls(const ArrowArray& column) {
  // null_count -1 means "not counted": a missing validity bitmap is the only cheap proof of none.
  return column.null_count > 0 || (column.null_count < 0 && column.buffers[0] != nullptr);
}

template <typename T>
Result<std::span<const T>> view_column(const ArrowSchema& schema, const ArrowArray& array, std::string_view name) {
  for (std::int64_t i = 0; i < schema.n_children; ++i) {
    const ArrowSchema& field = *schema.children[i];
    if (field.name == nullptr || name != field.name) continue;
    const ArrowArray& column = *array.children[i];
    if (field.format != kArrowFormat<T>) {
      return Error{"column " + std::string(name) + " has the Arrow format '" + field.format + "', expected '" +
                   std::string(kArrowFormat<T>) + "'"};
    }
    if (has_nulls(column)) return Error{"column " + std::string(name) + " has nulls"};
    if (column.n_buffers != 2 || column.length < array.offset + array.length) {
      return Error{"column " + std::string(name) + " is shorter than the batch"};
    }
    if (array.length == 0) return std::span<const T>();
    const T* values = static_cast<const T*>(column.buffers[1]) + column.offset + array.offset;
    return std::span<const T>(values, static_cast<std::size_t>(array.length));
  }
  return Error{"column " + std::string(name) + " is missing"};
}

std::string at_row(std::size_t row) {
  return " in row " + std::to_string(row);
}

Error out_of_range(std::string_view column, std::int64_t value, std::size_t row, std::int64_t limit) {
  return Error{std::string(column) + " " + std::to_string(value) + at_row(row) + " is outside 0.." +
               std::to_string(limit - 1)};
}

Result<void> validate_row(const OpColumns& c, const JobLayout& layout, std::size_t row) {
  if (c.dp_rank[row] < 0 || c.dp_rank[row] >= layout.dp_size) {
    return out_of_range("dp_rank", c.dp_rank[row], row, layout.dp_size);
  }
  if (c.stage[row] < 0 || c.stage[row] >= layout.pp_size) {
    return out_of_range("stage", c.stage[row], row, layout.pp_size);
  }
  if (c.rank[row] < 0) return Error{"rank " + std::to_string(c.rank[row]) + at_row(row) + " is negative"};
  if (c.kind[row] >= kKindCount) return out_of_range("kind", c.kind[row], row, kKindCount);
  if (c.seq_id[row] < 0 || c.seq_id[row] >= kMaxSeqId) {
    return out_of_range("seq_id", c.seq_id[row], row, kMaxSeqId);
  }
  if (c.duration_ns[row] < 0) {
    return Error{"duration " + std::to_string(c.duration_ns[row]) + " ns" + at_row(row) + " is negative"};
  }
  const bool start_fits = c.start_ns[row] > -kMaxTimeNs && c.start_ns[row] < kMaxTimeNs;
  if (!start_fits || c.duration_ns[row] >= kMaxTimeNs) {
    return Error{"times" + at_row(row) + " are too large to be nanoseconds of one job"};
  }
  return {};
}

template <typename T>
bool take(Result<std::span<const T>> view, std::span<const T>& column, std::string& error) {
  if (!view) {
    if (error.empty()) error = view.error().message;
    return false;
  }
  column = *view;
  return true;
}

}  // namespace

Result<OpColumns> view_arrow_columns(const ArrowSchema& schema, const ArrowArray& array) {
  if (schema.format == nullptr || std::strcmp(schema.format, "+s") != 0 || schema.n_children != array.n_children) {
    return Error{"ops must come as one Arrow record batch"};
  }
  if (array.length < 0 || array.offset < 0 || array.null_count > 0) {
    return Error{"the record batch has null rows or a negative length"};
  }
  OpColumns c;
  std::string error;
  take(view_column<std::int32_t>(schema, array, "dp_rank"), c.dp_rank, error);
  take(view_column<std::int32_t>(schema, array, "stage"), c.stage, error);
  take(view_column<std::int32_t>(schema, array, "rank"), c.rank, error);
  take(view_column<std::int64_t>(schema, array, "step"), c.step, error);
  take(view_column<std::uint8_t>(schema, array, "kind"), c.kind, error);
  take(view_column<std::int64_t>(schema, array, "start_ns"), c.start_ns, error);
  take(view_column<std::int64_t>(schema, array, "duration_ns"), c.duration_ns, error);
  take(view_column<std::int32_t>(schema, array, "seq_id"), c.seq_id, error);
  take(view_column<std::int32_t>(schema, array, "chunk"), c.chunk, error);
  take(view_column<std::int32_t>(schema, array, "global_chunk"), c.global_chunk, error);
  take(view_column<std::int32_t>(schema, array, "microbatch"), c.microbatch, error);
  if (!error.empty()) return Error{error};
  return c;
}

Result<void> validate_columns(const OpColumns& columns, const JobLayout& layout) {
  for (std::int32_t size : {layout.dp_size, layout.pp_size, layout.tp_size, layout.cp_size, layout.vpp_size}) {
    if (size < 1) return Error{"every parallel size must be at least 1, got " + std::to_string(size)};
  }
  if (columns.size() == 0) return Error{"there are no ops"};
  for (std::size_t row = 0; row < columns.size(); ++row) {
    if (auto valid = validate_row(columns, layout, row); !valid) return valid;
  }
  return {};
}

}  // namespace smon_rt::analysis
