#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "analysis/id_lanes.h"
#include "analysis/op_timing.h"
#include "format/kind.h"

namespace smon_rt::analysis {

/// Work of the host during which its worker launches nothing.
enum class HostWork : std::uint8_t { kGc, kDataLoading, kCheckpoint, kOther };
inline constexpr std::size_t kHostWorkCount = 4;

/// None for what is no such work.
std::optional<HostWork> host_work_of(Kind kind);

/// The part of a launch delay during which its worker was at work of the host: that work is why the op came late,
/// whatever the graph says it waited for.
struct ExplainedDelay {
  OpIndex op = 0;
  std::uint32_t lane = 0;
  std::array<double, kHostWorkCount> by_work_ns{};

  double total_ns() const { return by_work_ns[0] + by_work_ns[1] + by_work_ns[2] + by_work_ns[3]; }
};

/// Of all positive launch delays, by op, then lane. Only of those that have such a part.
std::vector<ExplainedDelay> explained_delays(const IdLanes& lanes, const OpTiming& timing);

}  // namespace smon_rt::analysis
