// view_arrow_columns over batches whose every field lies: formats, names, lengths, offsets, null counts, missing
// buffers and children. Buffers hold what length and offset of their own array ask for, as the Arrow C data interface
// promises and no consumer can check; each value that the view offers is then read.
//
// Input: the batch's length, offset, null count, number of children and format, then its columns one after the other.

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "analysis/arrow_c_data.h"
#include "analysis/op_columns.h"

namespace {

constexpr const char* kNames[] = {"dp_rank",     "stage",  "rank",  "step",         "kind",      "start_ns",
                                  "duration_ns", "seq_id", "chunk", "global_chunk", "microbatch"};
constexpr const char* kFormats[] = {"i", "i", "i", "l", "C", "l", "l", "i", "i", "i", "i"};
constexpr std::size_t kColumnCount = std::size(kNames);
// Of columns beyond those that must be there.
constexpr const char* kOptionalNames[] = {"group_id",     "step_start_ns",       "is_waited",
                                          "communicator", "communicator_number", "member_excess_ns"};
constexpr const char* kOptionalFormats[] = {"l", "l", "C", "i", "i", "l"};
constexpr std::int64_t kMaxValues = 64;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }

  // Small numbers mostly, now and then one at an edge of int64.
  std::int64_t number() {
    constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();
    constexpr std::int64_t kEdges[] = {kLargest, kLargest - 1, kLargest / 2, kLargest / 8,
                                       -1,       -2,           -kLargest,    -kLargest - 1};
    const std::uint8_t value = byte();
    return value < 240 ? value % kMaxValues : kEdges[value % std::size(kEdges)];
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

struct Column {
  std::string name, format;
  std::vector<std::int64_t> values;  // eight bytes each, whatever the format says
  std::uint8_t bitmap[2 * kMaxValues / 8] = {};
  std::array<const void*, 2> buffers = {nullptr, nullptr};
  ArrowSchema schema{}, dictionary{};
  ArrowArray array{};
};

std::unique_ptr<Column> column_of(Input& input, std::size_t index) {
  auto column = std::make_unique<Column>();
  const std::uint8_t flags = input.byte();
  const std::uint8_t other = input.byte();
  const std::size_t optional = (index - kColumnCount) % std::size(kOptionalNames);
  column->name = (flags & 1) != 0       ? kNames[other % kColumnCount]
                 : index < kColumnCount ? kNames[index]
                                        : kOptionalNames[optional];
  column->format = index < kColumnCount ? kFormats[index] : kOptionalFormats[optional];
  if ((flags & 2) != 0) column->format.assign(1, static_cast<char>(other));
  column->array.length = input.number();
  column->array.offset = input.number();
  column->array.null_count = (flags & 4) != 0 ? input.number() : 0;
  column->array.n_buffers = (flags & 8) != 0 ? input.number() : 2;
  if (column->array.length >= 0 && column->array.length < kMaxValues && column->array.offset >= 0 &&
      column->array.offset < kMaxValues) {
    column->values.resize(static_cast<std::size_t>(column->array.length + column->array.offset));
  }
  if ((flags & 16) != 0) column->buffers[0] = column->bitmap;
  // Lengths that no buffer holds come with none: a producer may lie, but not make a consumer read memory it does not
  // claim to have.
  column->buffers[1] = column->values.empty() || (flags & 32) != 0 ? nullptr : column->values.data();
  column->array.buffers = column->array.n_buffers < 1 && other % 2 == 0 ? nullptr : column->buffers.data();
  column->schema.name = (flags & 64) != 0 && other % 4 == 0 ? nullptr : column->name.c_str();
  column->schema.format = (flags & 64) != 0 && other % 4 == 1 ? nullptr : column->format.c_str();
  column->schema.dictionary = (flags & 64) != 0 && other % 4 == 2 ? &column->dictionary : nullptr;
  return column;
}

template <typename T>
std::uint64_t sum(std::span<const T> values) {
  std::uint64_t total = 0;
  for (T value : values) total += static_cast<std::uint64_t>(value);
  return total;
}

// A violation is a finding like a crash.
void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  ArrowSchema schema{};
  ArrowArray array{};
  array.length = input.number();
  array.offset = input.number();
  const std::uint8_t flags = input.byte();
  array.null_count = (flags & 1) != 0 ? input.number() : 0;
  const std::size_t count = (flags & 2) != 0 ? input.byte() % 16 : kColumnCount;
  std::vector<std::unique_ptr<Column>> columns;
  std::vector<ArrowSchema*> schemas;
  std::vector<ArrowArray*> arrays;
  for (std::size_t i = 0; i < count; ++i) {
    const Column& column = *columns.emplace_back(column_of(input, i));
    schemas.push_back(const_cast<ArrowSchema*>(&column.schema));
    arrays.push_back(const_cast<ArrowArray*>(&column.array));
  }
  if ((flags & 4) != 0 && count > 0) (flags % 2 == 0 ? schemas[0] : schemas.back()) = nullptr;
  if ((flags & 8) != 0 && count > 0) (flags % 2 == 0 ? arrays[0] : arrays.back()) = nullptr;
  const void* batch_buffers[] = {&flags};
  array.n_buffers = (flags & 16) != 0 ? 1 : 0;
  array.buffers = (flags & 16) != 0 ? batch_buffers : nullptr;
  schema.format = (flags & 32) == 0 ? "+s" : (flags & 1) == 0 ? nullptr : "+l";
  schema.n_children = static_cast<std::int64_t>(count) + ((flags & 64) != 0 && (flags & 1) != 0 ? 1 : 0);
  array.n_children = static_cast<std::int64_t>(count);
  schema.children = (flags & 64) != 0 && (flags & 2) != 0 ? nullptr : schemas.data();
  array.children = (flags & 128) != 0 ? nullptr : arrays.data();

  const auto view = smon_rt::analysis::view_arrow_columns(schema, array);
  if (!view) {
    require(!view.error().message.empty());
    return 0;
  }
  const std::size_t rows = view->size();
  require(rows == static_cast<std::size_t>(array.length));
  require(view->dp_rank.size() == rows && view->kind.size() == rows && view->microbatch.size() == rows);
  volatile std::uint64_t total = sum(view->dp_rank) + sum(view->stage) + sum(view->rank) + sum(view->step) +
                                 sum(view->kind) + sum(view->start_ns) + sum(view->duration_ns) + sum(view->seq_id) +
                                 sum(view->chunk) + sum(view->global_chunk) + sum(view->microbatch) +
                                 sum(view->group_id) + sum(view->step_start_ns) + sum(view->is_waited);
  static_cast<void>(total);
  return 0;
}
