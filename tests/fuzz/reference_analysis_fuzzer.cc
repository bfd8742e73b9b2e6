// The engine over jobs that are nearly right: a valid 1F1B job is made, then damaged cell by cell, so that the deeper
// stages (matching, graph, replay) see input that the earlier ones let pass. analyze_fuzzer starts from arbitrary rows.
//
// A bit of the flags asks for the rules of ids, and for uneven microbatches; global_chunk edits change the group id
// then. Input: a byte each of dp, pp, microbatches, steps, flags and claim (from 128 on, a false layout, and a byte
// more says which); then edits of 8 bytes: what, row (16 bits), a shift, value (int32), all little endian.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <vector>

#include "../unit/analysis/job_builder.h"
#include "analysis/analyze.h"

namespace {

using smon_rt::Kind;
using smon_rt::analysis::Analysis;
using smon_rt::analysis::JobLayout;
using smon_rt::analysis::Rules;
using smon_rt::analysis::testing::ColumnStore;
using smon_rt::analysis::testing::DpMode;
using smon_rt::analysis::testing::JobSpec;
using smon_rt::analysis::testing::make_job;
using smon_rt::analysis::testing::Row;

constexpr std::size_t kMaxRows = 4096;
constexpr std::size_t kEditBytes = 8;

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  std::size_t left() const { return size_; }
  std::uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  std::uint16_t half() {
    const std::uint32_t low = byte();
    return static_cast<std::uint16_t>(low | std::uint32_t{byte()} << 8);
  }
  std::int32_t word() {
    const std::uint32_t low = half();
    return static_cast<std::int32_t>(low | std::uint32_t{half()} << 16);
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

JobSpec spec_of(Input& input, bool& has_ids) {
  JobSpec spec;
  spec.dp_size = 1 + input.byte() % 3;
  spec.pp_size = 1 + input.byte() % 4;
  spec.microbatches = 1 + input.byte() % 5;
  spec.steps = 1 + input.byte() % 3;
  const std::uint8_t flags = input.byte();
  spec.dp_mode = static_cast<DpMode>(flags % 3);
  spec.gc = (flags & 4) != 0;
  if ((flags & 8) != 0) {
    spec.launch_delay = [](const Row& row) { return smon_rt::analysis::testing::jitter(row, 100'000); };
  }
  has_ids = (flags & 16) != 0;
  if (has_ids && (flags & 32) != 0) {
    spec.uneven_microbatches = [](int dp_rank, std::int64_t step) {
      return static_cast<int>(1 + (dp_rank + step) % 3);
    };
  }
  return spec;
}

// A layout that the file claims and the rows do not bear out.
JobLayout false_layout(const JobSpec& spec, std::uint8_t which, std::uint8_t claim) {
  constexpr std::int32_t kClaims[] = {0,
                                      -1,
                                      1,
                                      2,
                                      3,
                                      17,
                                      4096,
                                      1 << 20,
                                      std::numeric_limits<std::int32_t>::max(),
                                      std::numeric_limits<std::int32_t>::min()};
  JobLayout layout = spec.layout();
  std::int32_t* const sizes[] = {&layout.dp_size, &layout.pp_size,  &layout.tp_size,
                                 &layout.cp_size, &layout.vpp_size, &layout.world_size};
  *sizes[which % std::size(sizes)] = kClaims[claim % std::size(kClaims)];
  return layout;
}

std::int64_t add(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

// Changes one cell, or one column of all rows, or the rows themselves.
void edit(std::vector<Row>& rows, Input& input, bool has_ids) {
  const std::uint8_t what = input.byte();
  const std::size_t at = input.half() % rows.size();
  const std::uint8_t shift = input.byte();
  const std::int32_t value = input.word();
  const auto wide = static_cast<std::int64_t>(static_cast<std::uint64_t>(std::int64_t{value}) << (shift & 0x1f));
  Row& row = rows[at];
  switch (what % 20) {
    case 0:
      row.dp_rank = value;
      break;
    case 1:
      row.stage = value;
      break;
    case 2:
      row.rank = value;
      break;
    case 3:
      row.step = add(row.step, wide);
      break;
    case 4:
      row.kind = static_cast<Kind>(value & 0xff);
      break;
    case 5:
      row.start_ns = add(row.start_ns, wide);
      break;
    case 6:
      row.duration_ns = add(row.duration_ns, wide);
      break;
    case 7:
      row.seq_id = value;
      break;
    case 8:
      row.chunk = value;
      break;
    case 9:
      if (has_ids) {
        row.group_id = value;
      } else {
        row.global_chunk = value;
      }
      break;
    case 10:
      row.microbatch = value;
      break;
    case 11:
      rows.erase(rows.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 12:
      rows.push_back(Row(row));
      break;
    case 13:
      std::swap(row, rows[static_cast<std::uint32_t>(value) % rows.size()]);
      break;
    case 14:
      row.start_ns = wide, row.duration_ns = shift;
      break;
    // The same change in each lane keeps the job whole, and reaches the graph.
    default: {
      const Row sample = row;
      for (Row& each : rows) {
        if (each.kind != sample.kind || each.stage != sample.stage || each.seq_id != sample.seq_id) continue;
        if (what % 20 == 15) each.kind = static_cast<Kind>(value & 0x1f);
        if (what % 20 == 16) each.start_ns = add(each.start_ns, wide);
        if (what % 20 == 17) each.chunk = value, each.global_chunk = value >> 8;
        if (what % 20 == 18) each.seq_id = value;
        if (what % 20 == 19) each.duration_ns = std::abs(wide >> 8);
      }
    }
  }
}

// What holds of every answer; a violation is a finding like a crash.
void require(bool holds) {
  if (!holds) std::abort();
}

void check(const Analysis& analysis, const JobLayout& layout) {
  const std::size_t workers = static_cast<std::size_t>(layout.dp_size) * static_cast<std::size_t>(layout.pp_size);
  require(analysis.worker_slowdowns.size() == workers && analysis.worker_ranks.size() == workers);
  require(std::isfinite(analysis.slowdown) && std::isfinite(analysis.launch_slowdown));
  for (double slowdown : analysis.worker_slowdowns) require(std::isfinite(slowdown));
  for (double ns : analysis.ideal_step_ns) require(ns > 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  bool has_ids = false;
  const JobSpec spec = spec_of(input, has_ids);
  const std::uint8_t claim = input.byte();
  const JobLayout layout = claim < 128 ? spec.layout() : false_layout(spec, claim, input.byte());
  std::vector<Row> rows = make_job(spec);
  const bool is_sound = claim < 128 && input.left() < kEditBytes;
  while (input.left() >= kEditBytes && !rows.empty() && rows.size() < kMaxRows) edit(rows, input, has_ids);
  const ColumnStore store(rows);
  int last_done = 0, last_total = 0;
  const auto on_progress = [&](int done, int total) {
    last_done = done;
    last_total = total;
    return true;
  };
  const auto analysis =
      smon_rt::analysis::analyze(store.view(), layout, on_progress, {has_ids ? Rules::kIds : Rules::kReference, 0});
  if (analysis) {
    check(*analysis, layout);
    require(last_done == last_total);
    return 0;
  }
  require(!analysis.error().message.empty() && analysis.error().message.find('\n') == std::string::npos);
  require(!is_sound);
  return 0;
}
