#include "analysis/op_columns.h"

#include <cstring>
#include <limits>
#include <string>
#include <string_view>

namespace smon_rt::analysis {
namespace {

constexpr std::int64_t kMaxTimeNs = std::numeric_limits<std::int64_t>::max() / 4;

template <typename T>
constexpr std::string_view kArrowFormat = "";
template <>
constexpr std::string_view kArrowFormat<std::int32_t> = "i";
template <>
constexpr std::string_view kArrowFormat<std::int64_t> = "l";
template <>
constexpr std::string_view kArrowFormat<std::uint8_t> = "C";

bool has_nulls(const ArrowArray& array) {
  // null_count -1 means "not counted": a missing validity bitmap is the only cheap proof of none.
  const bool has_bitmap = array.n_buffers > 0 && array.buffers != nullptr && array.buffers[0] != nullptr;
  return array.null_count > 0 || (array.null_count < 0 && has_bitmap);
}

// All that can be checked of a column without knowing how large its buffers are.
template <typename T>
Result<void> check_column(const ArrowSchema& field, const ArrowArray& column, const ArrowArray& batch,
                          const std::string& what) {
  const std::string_view format = field.format == nullptr ? "" : field.format;
  if (format != kArrowFormat<T>) {
    return Error{what + " has the Arrow format '" + std::string(format) + "', expected '" +
                 std::string(kArrowFormat<T>) + "'"};
  }
  if (field.dictionary != nullptr) return Error{what + " holds indices into a dictionary, expected plain values"};
  if (has_nulls(column)) return Error{what + " has nulls"};
  // No sum here: lengths and offsets may be anything, and the batch's are known not to be negative.
  if (column.length < 0 || batch.length > column.length - batch.offset) {
    return Error{what + " is shorter than the batch"};
  }
  if (column.offset < 0) return Error{what + " has a negative offset"};
  if (batch.length == 0) return {};
  if (column.n_buffers != 2 || column.buffers == nullptr || column.buffers[1] == nullptr) {
    return Error{what + " has no values"};
  }
  if (reinterpret_cast<std::uintptr_t>(column.buffers[1]) % alignof(T) != 0) {
    return Error{what + " lies at an address that is no multiple of its " + std::to_string(sizeof(T)) + " bytes"};
  }
  return {};
}

template <typename T>
Result<std::span<const T>> view_column(const ArrowSchema& schema, const ArrowArray& batch, std::string_view name) {
  const std::string what = "column " + std::string(name);
  for (std::int64_t i = 0; i < schema.n_children; ++i) {
    const ArrowSchema* field = schema.children[i];
    const ArrowArray* column = batch.children[i];
    if (field == nullptr || column == nullptr || field->name == nullptr || name != field->name) continue;
    if (auto valid = check_column<T>(*field, *column, batch, what); !valid) return valid.error();
    if (batch.length == 0) return std::span<const T>();
    const T* values = static_cast<const T*>(column->buffers[1]) + column->offset + batch.offset;
    return std::span<const T>(values, static_cast<std::size_t>(batch.length));
  }
  return Error{what + " is missing"};
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
  if (c.seq_id[row] < 0) return Error{"seq_id " + std::to_string(c.seq_id[row]) + at_row(row) + " is negative"};
  if (c.duration_ns[row] < 0) {
    return Error{"duration " + std::to_string(c.duration_ns[row]) + " ns" + at_row(row) + " is negative"};
  }
  auto fits = [](std::int64_t ns) { return ns > -kMaxTimeNs && ns < kMaxTimeNs; };
  const bool step_start_fits = c.step_start_ns.empty() || fits(c.step_start_ns[row]);
  if (!c.member_excess_ns.empty() && c.member_excess_ns[row] < 0) {
    return Error{"member_excess " + std::to_string(c.member_excess_ns[row]) + " ns" + at_row(row) + " is negative"};
  }
  if (!fits(c.start_ns[row]) || !step_start_fits || c.duration_ns[row] >= kMaxTimeNs) {
    return Error{"times" + at_row(row) + " are too large to be nanoseconds of one job"};
  }
  return {};
}

bool has_column(const ArrowSchema& schema, std::string_view name) {
  for (std::int64_t i = 0; i < schema.n_children; ++i) {
    const ArrowSchema* field = schema.children[i];
    if (field != nullptr && field->name != nullptr && name == field->name) return true;
  }
  return false;
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
  const bool is_struct = schema.format != nullptr && std::strcmp(schema.format, "+s") == 0;
  if (!is_struct || schema.n_children != array.n_children ||
      (schema.n_children > 0 && (schema.children == nullptr || array.children == nullptr))) {
    return Error{"ops must come as one Arrow record batch"};
  }
  if (array.length < 0 || array.offset < 0 || has_nulls(array)) {
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
  if (has_column(schema, "group_id")) {
    take(view_column<std::int64_t>(schema, array, "group_id"), c.group_id, error);
  }
  if (has_column(schema, "step_start_ns")) {
    take(view_column<std::int64_t>(schema, array, "step_start_ns"), c.step_start_ns, error);
  }
  if (has_column(schema, "is_waited")) {
    take(view_column<std::uint8_t>(schema, array, "is_waited"), c.is_waited, error);
  }
  if (has_column(schema, "communicator")) {
    take(view_column<std::int32_t>(schema, array, "communicator"), c.communicator, error);
  }
  if (has_column(schema, "communicator_number")) {
    take(view_column<std::int32_t>(schema, array, "communicator_number"), c.communicator_number, error);
  }
  if (has_column(schema, "member_excess_ns")) {
    take(view_column<std::int64_t>(schema, array, "member_excess_ns"), c.member_excess_ns, error);
  }
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
