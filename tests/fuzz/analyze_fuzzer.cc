// The whole engine over arbitrary rows: whatever a trace claims, analyze() answers or refuses, and never reads or
// computes outside its bounds.
//
// Input: 7 bytes of layout and rules (dp, pp, tp, cp, vpp, world, rules), then rows of 19 bytes, as encoded by
// make_seeds.py: dp_rank stage rank step kind seq_id chunk global_chunk microbatch group_id (a byte each), a byte of
// two shifts, start and duration (int32 each, little endian). The shifts take times from nanoseconds to the edge of
// int64. An odd byte of rules asks for those of ids; its other bits are the clock bound, and which optional columns
// there are.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "analysis/analyze.h"

namespace {

using smon_rt::analysis::AnalyzeOptions;
using smon_rt::analysis::JobLayout;
using smon_rt::analysis::OpColumns;
using smon_rt::analysis::Rules;

constexpr std::size_t kLayoutBytes = 7;
constexpr std::size_t kRowBytes = 19;
constexpr std::size_t kMaxRows = 512;  // a step of a real job fits; more only slows the search

struct Rows {
  std::vector<std::int32_t> dp_rank, stage, rank, seq_id, chunk, global_chunk, microbatch, communicator, number;
  std::vector<std::int64_t> step, start_ns, duration_ns, group_id, step_start_ns, member_excess_ns;
  std::vector<std::uint8_t> kind, is_waited;

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
    group_id.push_back(small(9));
    start_ns.push_back(time(11, row[10] & 0x1f));
    duration_ns.push_back(time(15, (row[10] >> 5) * 4u));
    step_start_ns.push_back(start_ns.back() / 2);
    is_waited.push_back(row[5] & 1);
    communicator.push_back(row[9] % 3 - 1);
    number.push_back(small(5));
    // None mostly, a part of the op, or more than all of it.
    member_excess_ns.push_back(row[9] % 4 == 0 ? duration_ns.back() / 3 * (row[9] % 8) : 0);
  }

  OpColumns columns(std::uint8_t rules) const {
    OpColumns columns{.dp_rank = dp_rank,
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
    if ((rules & 2) == 0) columns.group_id = group_id;
    if ((rules & 4) != 0) columns.step_start_ns = step_start_ns;
    if ((rules & 8) != 0) {
      columns.is_waited = is_waited;
      columns.communicator = communicator;
      columns.communicator_number = number;
      columns.member_excess_ns = member_excess_ns;
    }
    return columns;
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
  const std::uint8_t rules = data[6];
  const AnalyzeOptions options{(rules & 1) != 0 ? Rules::kIds : Rules::kReference, double(rules >> 4) * 1e6};
  const auto analysis = smon_rt::analysis::analyze(rows.columns(rules), layout, {}, options);
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
