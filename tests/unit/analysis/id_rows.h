#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "analysis/id_graph.h"
#include "analysis/id_lanes.h"
#include "analysis/launch_order.h"
#include "job_builder.h"
#include "lanes.h"

namespace smon_rt::analysis::testing {

/// Which worker and step a row is of.
struct At {
  int dp_rank = 0;
  int stage = 0;
  std::int64_t step = 0;
};

/// Rows made by hand, with ids. Times in microseconds.
class IdRows {
 public:
  Row& add(At at, Kind kind, std::int64_t start_us, std::int64_t end_us, int microbatch = -1, int chunk = -1,
           std::int64_t group_id = -1) {
    Row row{kind, at.dp_rank, at.stage, 100 * at.stage + at.dp_rank, at.step};
    row.microbatch = microbatch;
    row.chunk = chunk;
    row.start_ns = start_us * 1000;
    row.duration_ns = (end_us - start_us) * 1000;
    row.group_id = group_id;
    for (const Row& other : rows) {
      const bool is_before = other.dp_rank == at.dp_rank && other.stage == at.stage && other.step == at.step;
      if (is_before && other.kind == kind) ++row.seq_id;
    }
    return rows.emplace_back(row);
  }
  Row& compute(At at, Kind kind, int microbatch, std::int64_t start_us, std::int64_t end_us, int chunk = 0) {
    return add(at, kind, start_us, end_us, microbatch, chunk);
  }

  std::vector<Row> rows;
};

/// Rows taken apart, for questions by kind, stage and ids.
class IdJob {
 public:
  IdJob(const std::vector<Row>& rows, const JobLayout& layout, double tolerance_ns = 0)
      : lanes(build(rows, layout)), graph(build_graph(lanes, tolerance_ns).value()) {}

  /// The op of these ids; `nth` of those that have the same.
  OpIndex op(Kind kind, int stage, int microbatch = -1, int chunk = -1, int nth = 0) const {
    for (OpIndex i = 0; i < graph.size(); ++i) {
      const Op& op = graph.op(i);
      const bool has_ids = op.kind == kind && op.stage == stage && op.microbatch == microbatch;
      if (has_ids && (chunk < 0 || op.chunk == chunk) && nth-- == 0) return i;
    }
    throw std::out_of_range("no " + std::string(kind_name(kind)) + " of microbatch " + std::to_string(microbatch));
  }
  Ops before(OpIndex op) const { return dependencies_of(graph, op); }
  bool waits_for(OpIndex op, OpIndex other) const { return before(op).contains(other); }
  bool is_recorded(OpIndex op, std::size_t lane) const { return lanes.table.recorded().has(op, lane); }

  IdLanes lanes;
  OpGraph graph;

 private:
  static IdLanes build(const std::vector<Row>& rows, const JobLayout& layout) {
    const ColumnStore store(rows);
    return build_id_lanes(store.full_view(), layout).value();
  }
};

inline JobLayout layout_of(int dp_size, int pp_size, int vpp_size = 1) {
  return {dp_size, pp_size, 1, 1, vpp_size, dp_size * pp_size};
}

}  // namespace smon_rt::analysis::testing
