#pragma once

#include <cstddef>
#include <stdexcept>
#include <utility>
#include <vector>

#include "analysis/lane_table.h"
#include "analysis/op_timing.h"
#include "analysis/reference_graph.h"
#include "analysis/what_if.h"
#include "job_builder.h"

namespace smon_rt::analysis::testing {

/// A made job, taken apart as analyze() does it. Not movable: `what_if` borrows the rest.
class WhatIfJob {
 public:
  explicit WhatIfJob(const JobSpec& spec) : WhatIfJob(make_job(spec), spec.layout()) {}

  WhatIfJob(const std::vector<Row>& rows, const JobLayout& layout)
      : table(build_table(rows, layout)),
        graph(std::move(build_reference_graph(table.template_ops(), layout.pp_size)).value()),
        timing(measure_ops(table, graph)),
        what_if(graph, timing, static_cast<std::size_t>(layout.dp_size), static_cast<std::size_t>(layout.pp_size)) {}
  WhatIfJob(const WhatIfJob&) = delete;
  WhatIfJob& operator=(const WhatIfJob&) = delete;

  std::vector<double> ideal_ns() const { return what_if.simulator().replay(what_if.ideal()).optimizer; }
  std::vector<double> nodelay_ns() const { return what_if.simulator().replay(what_if.nodelay()).optimizer; }

  LaneTable table;
  OpGraph graph;
  OpTiming timing;
  WhatIf what_if;

 private:
  static LaneTable build_table(const std::vector<Row>& rows, const JobLayout& layout) {
    const ColumnStore store(rows);
    return std::move(LaneTable::build(store.view(), layout)).value();
  }
};

/// Computes vary by worker and microbatch, one worker is twice as slow, hosts are slow now and then.
inline JobSpec uneven_job(int dp_size = 3, int pp_size = 3) {
  JobSpec spec;
  spec.dp_size = dp_size;
  spec.pp_size = pp_size;
  spec.duration = [](const Row& row) {
    const bool is_slow = row.dp_rank == 1 && row.stage == 0;
    return varied_duration(row) * (is_slow ? 2 : 1);
  };
  spec.launch_delay = [](const Row& row) { return jitter(row, 10) == 0 ? 1'000 + jitter(row, 200'000) : 0; };
  return spec;
}

}  // namespace smon_rt::analysis::testing
