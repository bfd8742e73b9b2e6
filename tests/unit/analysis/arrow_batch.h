#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "analysis/arrow_c_data.h"
#include "job_builder.h"

namespace smon_rt::analysis::testing {

/// A record batch in the Arrow C data interface, built by hand. Borrows the values of its columns. Not movable: its
/// structures point at each other.
class ArrowBatch {
 public:
  struct Column {
    std::string name;
    std::string format;
    ArrowSchema schema{};
    ArrowArray array{};
    const void* buffers[2] = {nullptr, nullptr};
  };

  explicit ArrowBatch(const ColumnStore& store) {
    add("dp_rank", "i", store.dp_rank);
    add("stage", "i", store.stage);
    add("rank", "i", store.rank);
    add("step", "l", store.step);
    add("kind", "C", store.kind);
    add("start_ns", "l", store.start_ns);
    add("duration_ns", "l", store.duration_ns);
    add("seq_id", "i", store.seq_id);
    add("chunk", "i", store.chunk);
    add("global_chunk", "i", store.global_chunk);
    add("microbatch", "i", store.microbatch);
    array.length = static_cast<std::int64_t>(store.step.size());
    link();
  }
  ArrowBatch(const ArrowBatch&) = delete;
  ArrowBatch& operator=(const ArrowBatch&) = delete;

  template <typename T>
  void add(std::string name, std::string format, const std::vector<T>& values) {
    Column& column = *columns_.emplace_back(std::make_unique<Column>());
    column.name = std::move(name);
    column.format = std::move(format);
    column.buffers[1] = values.data();
    column.array.length = static_cast<std::int64_t>(values.size());
    column.array.n_buffers = 2;
  }

  Column& column(const std::string& name) {
    for (const auto& each : columns_) {
      if (each->name == name) return *each;
    }
    throw std::out_of_range("the batch has no column " + name);
  }

  void remove(const std::string& name) {
    std::erase_if(columns_, [&](const auto& each) { return each->name == name; });
  }

  /// To be called again after columns changed their number, name or format.
  void link() {
    schemas_.clear();
    arrays_.clear();
    for (const auto& each : columns_) {
      each->schema.name = each->name.c_str();
      each->schema.format = each->format.c_str();
      each->array.buffers = each->buffers;
      schemas_.push_back(&each->schema);
      arrays_.push_back(&each->array);
    }
    schema.format = "+s";
    schema.n_children = array.n_children = static_cast<std::int64_t>(columns_.size());
    schema.children = schemas_.data();
    array.children = arrays_.data();
    array.n_buffers = 1;
    array.buffers = buffers_;
  }

  ArrowSchema schema{};
  ArrowArray array{};

 private:
  std::vector<std::unique_ptr<Column>> columns_;
  std::vector<ArrowSchema*> schemas_;
  std::vector<ArrowArray*> arrays_;
  const void* buffers_[1] = {nullptr};
};

}  // namespace smon_rt::analysis::testing
