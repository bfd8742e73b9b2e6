#include "analysis/job_edit.h"

namespace smon_rt::analysis {

JobEdit::JobEdit(const WhatIf& what_if, bool has_launch_delays)
    : lane_count_(what_if.timing().lane_count),
      scenario_(has_launch_delays ? what_if.recorded() : what_if.nodelay()),
      own_durations_(what_if.graph().size(), nullptr),
      own_delays_(what_if.graph().size(), nullptr) {}

double* JobEdit::own_row(OpIndex op, std::vector<OpValues>& values, std::vector<double*>& own) {
  if (own[op] == nullptr) {
    const double* recorded = values[op].lanes;
    own[op] = scenario_.owned_lanes.emplace_back(recorded, recorded + lane_count_).data();
    values[op] = OpValues{own[op], 0, nullptr};
  }
  return own[op];
}

}  // namespace smon_rt::analysis
