#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace smon_rt::analysis {

/// A link between two stages of one dp rank.
struct CauseLink {
  int dp_rank = -1;
  int stage = -1;
  int peer_stage = -1;
};

/// The job as recorded, launch delays included, without one cause of lost time. Several may have the same name, each
/// with its place: two slow workers are two causes.
struct CauseRemoval {
  std::string cause;  // as in the report
  int dp_rank = -1;   // where it is; -1: everywhere, or no such coordinate
  int stage = -1;
  int peer_stage = -1;  // of a link: its other end
  // Of several places, of which `dp_rank` and so on are the slowest one, all of them.
  std::vector<std::pair<std::size_t, std::size_t>> workers;  // (dp_rank, stage)
  std::vector<CauseLink> links;
  std::vector<std::pair<std::string, double>> detail;  // evidence, by name
  std::vector<double> step_ns;                         // step times of that replay
};

}  // namespace smon_rt::analysis
