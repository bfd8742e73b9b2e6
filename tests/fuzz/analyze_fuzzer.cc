// The whole engine over arbitrary rows: whatever a trace claims, analyze() answers or refuses, and never reads or
// computes outside its bounds.
//
// Input: 6 bytes of layout (dp, pp, tp, cp, vpp, world), then rows of 18 bytes, as encoded by make_seeds.py:
// dp_rank stage rank step kind seq_id chunk global_chunk microbatch (a byte each), a byte of two shifts, start and
// duration (int32 each, little endian). The shifts take times from nanoseconds to the edge of int64.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "analysis/analyze.h"

namespace {

using smon_rt::analysis::JobLayout;
using smon_rt::analysis::OpColumns;

constexpr std::size_t kLayoutBytes = 6;
constexpr std::size_t kRowBytes = 18;
constexpr std::size_t kMaxRows = 512;  // a step of a real job fits; more only slows the search

struct Rows {
  std::vector<std::int32_t> dp_rank, stage, rank, seq_id, chunk, global_chunk, microbatch;
  std::vector<std::int64_t> step, start_ns, duration_ns;
  std::vector<std::uint8_t> kind;

  void add(const std::uint8_t* row) {
    const auto small = [row](std::size_t at) { return static_cast<std::int8_t>(row[at]); };
    const auto time = [row](std::size_t at, unsigned shift) {
      std::int32_t value;
      std::memcpy(&value, row + at, sizeof value);
      return static_cast<std::int64_t>(static_cast<std::uint64_t>(static_cast<std::int64_t>(value)) << shift);
    };
    dp_rank.push_back(small(0));
    stage.push_back(small(1));
    rank.push_back(small(2));
    step.push_back(small(3));
    kind.push_back(row[4]);
    seq_id.push_back(small(5));
    chunk.push_back(small(6));
    global_chunk.push_back(small(7));
    microbatch.push_back(small(8));
    start_ns.push_back(time(10, row[9] & 0x1f));
    duration_ns.push_back(time(14, (row[9] >> 5) * 4u));
  }

  OpColumns columns() const {
    return {.dp_rank = dp_rank,
            .stage = stage,
            .rank = rank,
            .step = step,
            .kind = kind,
            .start_ns = start_ns,
            .duration_ns = duration_ns,
            .seq_id = seq_id,
            .chunk = chunk,
            .global_chunk = global_chunk,
            .microbatch = microbatch};
  }
};

// What holds of every answer; a violation is a finding like a crash.
void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < kLayoutBytes) return 0;
  // Small enough that a layout cannot ask for gigabytes on its own; signed, so that nonsense is covered.
  const auto at = [data](std::size_t index) { return static_cast<std::int8_t>(data[index]); };
  const JobLayout layout{
      .dp_size = at(0), .pp_size = at(1), .tp_size = at(2), .cp_size = at(3), .vpp_size = at(4), .world_size = at(5)};
  Rows rows;
  for (std::size_t row = 0; row < kMaxRows && kLayoutBytes + (row + 1) * kRowBytes <= size; ++row) {
    rows.add(data + kLayoutBytes + row * kRowBytes);
  }
  const auto analysis = smon_rt::analysis::analyze(rows.columns(), layout);
  if (!analysis) {
    require(!analysis.error().message.empty());
    require(analysis.error().message.find('\n') == std::string::npos);
    return 0;
  }
  const std::size_t step_count = analysis->steps.size();
  require(step_count > 0);
  require(analysis->base_step_ns.size() == step_count);
  require(analysis->nodelay_step_ns.size() == step_count);
  require(analysis->ideal_step_ns.size() == step_count);
  require(analysis->worker_slowdowns.size() == static_cast<std::size_t>(layout.dp_size) * layout.pp_size);
  return 0;
}
