#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "analysis/lane_ops.h"
#include "analysis/op_columns.h"
#include "analysis/op_graph.h"
#include "format/kind.h"

namespace smon_rt::analysis::testing {

inline constexpr std::uint8_t kNotSaid = 255;

/// One row of the op table.
struct Row {
  Kind kind = Kind::kStep;
  std::int32_t dp_rank = 0;
  std::int32_t stage = 0;
  std::int32_t rank = 0;
  std::int64_t step = 0;
  std::int32_t seq_id = 0;
  std::int32_t chunk = -1;
  std::int32_t global_chunk = -1;
  std::int32_t microbatch = -1;
  std::int64_t start_ns = 0;
  std::int64_t duration_ns = 0;
  std::int64_t group_id = -1;
  std::uint8_t is_waited = kNotSaid;
  std::int32_t communicator = -1;
  std::int32_t communicator_number = -1;

  std::int64_t end_ns() const { return start_ns + duration_ns; }
};

/// Owns the columns of some rows.
class ColumnStore {
 public:
  explicit ColumnStore(const std::vector<Row>& rows) {
    for (const Row& row : rows) {
      dp_rank.push_back(row.dp_rank);
      stage.push_back(row.stage);
      rank.push_back(row.rank);
      step.push_back(row.step);
      kind.push_back(static_cast<std::uint8_t>(row.kind));
      start_ns.push_back(row.start_ns);
      duration_ns.push_back(row.duration_ns);
      seq_id.push_back(row.seq_id);
      chunk.push_back(row.chunk);
      global_chunk.push_back(row.global_chunk);
      microbatch.push_back(row.microbatch);
      group_id.push_back(row.group_id);
      is_waited.push_back(row.is_waited);
      communicator.push_back(row.communicator);
      communicator_number.push_back(row.communicator_number);
    }
  }

  OpColumns view() const {
    return {dp_rank, stage, rank, step, kind, start_ns, duration_ns, seq_id, chunk, global_chunk, microbatch, group_id};
  }
  /// With who waited for communication, where a row says so, and the numbers of communicators.
  OpColumns full_view() const {
    OpColumns columns = view();
    const auto is_said = [](std::uint8_t waited) { return waited != kNotSaid; };
    if (std::any_of(is_waited.begin(), is_waited.end(), is_said)) columns.is_waited = is_waited;
    columns.communicator = communicator;
    columns.communicator_number = communicator_number;
    return columns;
  }

  std::vector<std::int32_t> dp_rank, stage, rank;
  std::vector<std::int64_t> step;
  std::vector<std::uint8_t> kind;
  std::vector<std::int64_t> start_ns, duration_ns;
  std::vector<std::int32_t> seq_id, chunk, global_chunk, microbatch;
  std::vector<std::int64_t> group_id;
  std::vector<std::uint8_t> is_waited;
  std::vector<std::int32_t> communicator, communicator_number;
};

enum class DpMode { kNone, kPlain, kOverlapped };

/// A number that looks random and is the same for the same op.
inline std::int64_t jitter(const Row& row, std::int64_t below) {
  std::uint64_t x = 1469598103934665603u;
  for (std::int64_t part : {std::int64_t{static_cast<std::uint8_t>(row.kind)}, std::int64_t{row.dp_rank},
                            std::int64_t{row.stage}, row.step, std::int64_t{row.seq_id}}) {
    x = (x ^ static_cast<std::uint64_t>(part)) * 1099511628211u;
    x ^= x >> 29;
  }
  return static_cast<std::int64_t>(x % static_cast<std::uint64_t>(below));
}

/// Computes of milliseconds, communication of tens of microseconds, each op a bit different.
inline std::int64_t varied_duration(const Row& row) {
  switch (row.kind) {
    case Kind::kForwardCompute:
      return 1'000'000 + jitter(row, 300'000);
    case Kind::kBackwardCompute:
      return 2'000'000 + jitter(row, 600'000);
    case Kind::kOptimizer:
      return 300'000 + jitter(row, 50'000);
    default:
      return 20'000 + jitter(row, 20'000);
  }
}

/// A 1F1B job. The step time follows from `duration` (of a communication: its transfer) and `launch_delay` by the
/// rules of whatif.md, so that taking the trace apart must give both back.
struct JobSpec {
  int dp_size = 2;
  int pp_size = 2;
  int microbatches = 4;
  int steps = 3;
  DpMode dp_mode = DpMode::kPlain;
  bool gc = false;
  /// By dp rank and step, where they are not the same everywhere: 0 for `microbatches`.
  std::function<int(int, std::int64_t)> uneven_microbatches = [](int, std::int64_t) { return 0; };
  std::function<std::int64_t(const Row&)> duration = varied_duration;  // > 0
  std::function<std::int64_t(const Row&)> launch_delay = [](const Row&) { return std::int64_t{0}; };

  JobLayout layout() const { return {dp_size, pp_size, 1, 1, 1, dp_size * pp_size}; }
};

/// Lays out one step of a job by plain arithmetic.
class StepLayout {
 public:
  StepLayout(const JobSpec& spec, std::int64_t step) : spec_(spec), step_(step) {}

  std::vector<Row> run() && {
    workers_.resize(static_cast<std::size_t>(spec_.dp_size * spec_.pp_size));
    if (spec_.dp_mode != DpMode::kNone) gather_params();
    for (int dp_rank = 0; dp_rank < spec_.dp_size; ++dp_rank) run_pipeline(dp_rank);
    run_tail();
    return std::move(rows_);
  }

 private:
  struct Done {
    std::int64_t start_ns = 0;
    std::int64_t end_ns = 0;
  };
  struct Direction {
    std::vector<Done> computes;
    std::int64_t send_end_ns = 0;
    std::int64_t recv_end_ns = 0;
  };
  struct Worker {
    std::int64_t compute_end_ns = 0;
    std::int64_t params_end_ns = 0;
    Direction forward, backward;
    std::size_t next = 0;
    std::int64_t tail_end_ns = 0;
    std::int64_t reduce_scatter_end_ns = 0;
  };

  Worker& worker(int dp_rank, int stage) { return workers_[static_cast<std::size_t>(dp_rank * spec_.pp_size + stage)]; }

  Row make(Kind kind, int dp_rank, int stage, int seq_id, int chunk, std::int64_t ready_ns) const {
    Row row{kind, dp_rank, stage, stage * spec_.dp_size + dp_rank, step_, seq_id, chunk, chunk < 0 ? -1 : stage};
    row.start_ns = ready_ns + spec_.launch_delay(row);
    return row;
  }

  std::int64_t run_alone(Row row) {
    row.duration_ns = spec_.duration(row);
    rows_.push_back(row);
    return row.end_ns();
  }

  // Returns where the transfer of each begins to count.
  std::int64_t communicate(std::vector<Row>& group) {
    std::int64_t begin = group.front().start_ns;
    for (const Row& row : group) begin = std::max(begin, row.start_ns);
    for (Row& row : group) {
      row.group_id = next_group_id_;
      row.duration_ns = begin + spec_.duration(row) - row.start_ns;
      rows_.push_back(row);
    }
    ++next_group_id_;
    return begin;
  }

  void gather_params() {
    for (int stage = 0; stage < spec_.pp_size; ++stage) {
      std::vector<Row> group;
      for (int dp = 0; dp < spec_.dp_size; ++dp) group.push_back(make(Kind::kParamsAllGather, dp, stage, 0, 0, 0));
      communicate(group);
      for (const Row& row : group) worker(row.dp_rank, stage).params_end_ns = row.end_ns();
    }
  }

  // The i-th compute of a stage in 1F1B order: is it a forward, and of which microbatch.
  std::pair<bool, int> schedule(int dp_rank, int stage, std::size_t i) const {
    const int microbatches = microbatches_of(dp_rank);
    const int warmup = std::min(spec_.pp_size - 1 - stage, microbatches);
    const int at = static_cast<int>(i);
    if (at < warmup) return {true, at};
    const int steady = 2 * (microbatches - warmup);
    if (at - warmup < steady)
      return {(at - warmup) % 2 == 0, (at - warmup) / 2 + ((at - warmup) % 2 == 0 ? warmup : 0)};
    return {false, at - microbatches};
  }

  int microbatches_of(int dp_rank) const {
    const int uneven = spec_.uneven_microbatches(dp_rank, step_);
    return uneven > 0 ? uneven : spec_.microbatches;
  }

  void run_pipeline(int dp_rank) {
    const std::size_t per_stage = static_cast<std::size_t>(2 * microbatches_of(dp_rank));
    const std::size_t total = static_cast<std::size_t>(spec_.pp_size) * per_stage;
    for (std::size_t done = 0; done < total;) {
      for (int stage = 0; stage < spec_.pp_size; ++stage) {
        while (worker(dp_rank, stage).next < per_stage && run_compute(dp_rank, stage)) {
          ++done;
        }
      }
    }
  }

  bool run_compute(int dp_rank, int stage) {
    Worker& self = worker(dp_rank, stage);
    const auto [is_forward, microbatch] = schedule(dp_rank, stage, self.next);
    const int from = is_forward ? stage - 1 : stage + 1;
    Direction& own = is_forward ? self.forward : self.backward;
    std::int64_t ready = self.compute_end_ns;
    if (from >= 0 && from < spec_.pp_size) {
      Worker& peer = worker(dp_rank, from);
      Direction& peers = is_forward ? peer.forward : peer.backward;
      if (peers.computes.size() <= static_cast<std::size_t>(microbatch)) return false;
      ready = std::max(ready, transfer(dp_rank, from, stage, is_forward, microbatch, peers, own));
    }
    if (is_forward && microbatch == 0) ready = std::max(ready, self.params_end_ns);
    Row row = make(is_forward ? Kind::kForwardCompute : Kind::kBackwardCompute, dp_rank, stage, microbatch, 0, ready);
    row.microbatch = microbatch;
    self.compute_end_ns = run_alone(row);
    own.computes.push_back({row.start_ns, self.compute_end_ns});
    ++self.next;
    return true;
  }

  std::int64_t transfer(int dp_rank, int from, int to, bool is_forward, int microbatch, Direction& sender,
                        Direction& receiver) {
    std::int64_t recv_ready = receiver.recv_end_ns;
    if (microbatch > 0) {
      recv_ready = std::max(recv_ready, receiver.computes[static_cast<std::size_t>(microbatch - 1)].end_ns);
    } else if (!is_forward) {
      const std::vector<Done>& forwards = worker(dp_rank, to).forward.computes;
      if (forwards.size() >= 2) recv_ready = std::max(recv_ready, forwards[forwards.size() - 2].end_ns);
    }
    const std::int64_t send_ready =
        std::max(sender.send_end_ns, sender.computes[static_cast<std::size_t>(microbatch)].end_ns);
    std::vector<Row> pair = {
        make(is_forward ? Kind::kForwardSend : Kind::kBackwardSend, dp_rank, from, microbatch, 0, send_ready),
        make(is_forward ? Kind::kForwardRecv : Kind::kBackwardRecv, dp_rank, to, microbatch, 0, recv_ready)};
    for (Row& row : pair) row.microbatch = microbatch;
    communicate(pair);
    sender.send_end_ns = pair[0].end_ns();
    receiver.recv_end_ns = pair[1].end_ns();
    return pair[1].end_ns();
  }

  void run_tail() {
    for (Worker& each : workers_) each.tail_end_ns = each.compute_end_ns;
    if (spec_.gc) run_each(Kind::kGc);
    if (spec_.dp_mode == DpMode::kOverlapped) {
      over_dp(
          Kind::kGradsReduceScatter, 0, [](const Worker& each) { return each.compute_end_ns; },
          [](Worker& each) -> std::int64_t& { return each.reduce_scatter_end_ns; });
      for (Worker& each : workers_) each.tail_end_ns = std::max(each.tail_end_ns, each.reduce_scatter_end_ns);
    }
    run_each(Kind::kLayernormGradsAllReduce);
    for (int dp_rank = 0; dp_rank < spec_.dp_size; ++dp_rank) {
      std::set<int> ends = {0, spec_.pp_size - 1};
      together(Kind::kEmbeddingGradsAllReduce, {dp_rank}, {ends.begin(), ends.end()}, -1);
    }
    const auto tail_end = [](const Worker& each) { return each.tail_end_ns; };
    const auto tail_end_ref = [](Worker& each) -> std::int64_t& { return each.tail_end_ns; };
    if (spec_.dp_mode == DpMode::kPlain) over_dp(Kind::kGradsReduceScatter, 0, tail_end, tail_end_ref);
    if (spec_.dp_mode == DpMode::kOverlapped) over_dp(Kind::kSeparateGradsAllReduce, 0, tail_end, tail_end_ref);
    together(Kind::kOptimizerClipMainGrad, all(spec_.dp_size), all(spec_.pp_size), -1);
    run_each(Kind::kOptimizer);
  }

  static std::vector<int> all(int size) {
    std::vector<int> values;
    for (int i = 0; i < size; ++i) values.push_back(i);
    return values;
  }

  void run_each(Kind kind) {
    for (int dp = 0; dp < spec_.dp_size; ++dp) {
      for (int stage = 0; stage < spec_.pp_size; ++stage) {
        Worker& each = worker(dp, stage);
        each.tail_end_ns = run_alone(make(kind, dp, stage, 0, -1, each.tail_end_ns));
      }
    }
  }

  template <typename Ready, typename End>
  void over_dp(Kind kind, int chunk, Ready ready, End end) {
    for (int stage = 0; stage < spec_.pp_size; ++stage) {
      std::vector<Row> group;
      for (int dp = 0; dp < spec_.dp_size; ++dp)
        group.push_back(make(kind, dp, stage, 0, chunk, ready(worker(dp, stage))));
      communicate(group);
      for (const Row& row : group) end(worker(row.dp_rank, stage)) = row.end_ns();
    }
  }

  void together(Kind kind, const std::vector<int>& dp_ranks, const std::vector<int>& stages, int chunk) {
    std::vector<Row> group;
    for (int dp : dp_ranks) {
      for (int stage : stages) group.push_back(make(kind, dp, stage, 0, chunk, worker(dp, stage).tail_end_ns));
    }
    communicate(group);
    for (const Row& row : group) worker(row.dp_rank, row.stage).tail_end_ns = row.end_ns();
  }

  const JobSpec& spec_;
  std::int64_t step_;
  std::vector<Worker> workers_;
  std::vector<Row> rows_;
  std::int64_t next_group_id_ = 0;
};

inline constexpr std::int64_t kFirstStep = 7;
inline constexpr std::int64_t kFirstStepBeginNs = 1'700'000'000'000'000'000;

inline std::vector<Row> make_job(const JobSpec& spec) {
  std::vector<Row> rows;
  for (int i = 0; i < spec.steps; ++i) {
    for (Row& row : StepLayout(spec, kFirstStep + i).run()) {
      row.start_ns += kFirstStepBeginNs + i * 10'000'000'000;
      rows.push_back(row);
    }
  }
  return rows;
}

/// The ops of dp rank 0 in the first step, as the graph builders get them.
inline std::vector<RecordedOp> first_lane(const std::vector<Row>& rows) {
  std::vector<RecordedOp> lane;
  for (const Row& row : rows) {
    if (row.dp_rank != 0 || row.step != kFirstStep) continue;
    lane.push_back(
        {{row.kind, row.stage, row.seq_id, row.chunk, row.global_chunk, row.microbatch}, row.start_ns, row.end_ns()});
  }
  return lane;
}

}  // namespace smon_rt::analysis::testing
