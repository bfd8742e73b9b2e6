#include "analysis/id_cells.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace smon_rt::analysis {
namespace {

// Cells that a table may have per row. A ramp of microbatches needs 2, one odd step among few somewhat more; far more
// means that the lanes are not of one job, and would ask for memory that the rows do not justify.
constexpr std::size_t kMaxCellsPerRow = 32;
constexpr std::size_t kFreeCells = std::size_t{1} << 20;

constexpr std::uint32_t kInside = 256;
constexpr std::uint32_t kNumbered = 512;

struct Identity {
  std::uint32_t kind_and_place = 0;  // kind; kInside: a host op inside a compute; kNumbered: by its communicator
  std::int32_t stage = 0;
  std::int32_t chunk = 0;
  std::int32_t microbatch = 0;
  std::uint32_t anchor = 0;  // host ops: the compute they follow; collectives with a number: their communicator
  std::uint32_t nth = 0;     // of equal ones

  bool operator==(const Identity&) const = default;
};

struct IdentityHash {
  std::size_t operator()(const Identity& id) const {
    std::uint64_t x = 0x9e3779b97f4a7c15u;
    for (std::uint64_t part :
         {std::uint64_t{id.kind_and_place}, static_cast<std::uint64_t>(id.stage), static_cast<std::uint64_t>(id.chunk),
          static_cast<std::uint64_t>(id.microbatch), std::uint64_t{id.anchor}, std::uint64_t{id.nth}}) {
      x = (x ^ part) * 0xff51afd7ed558ccdu;
      x ^= x >> 32;
    }
    return static_cast<std::size_t>(x);
  }
};

class Identifier {
 public:
  Identifier(const OpColumns& columns, const LaunchOrder& order, IdCells& cells)
      : c_(columns), order_(order), cells_(cells) {
    cells.op_of.assign(order.launches().size(), 0);
  }

  void run() {
    for (std::size_t worker = 0; worker < order_.worker_count(); ++worker) {
      number_equal_ops(worker);
      identify_host_ops(worker);
    }
  }

 private:
  std::uint32_t& op_of(std::size_t worker, std::size_t i) { return cells_.op_of[order_.begin(worker) + i]; }

  OpIndex op_with(const Identity& id, std::size_t row) {
    const auto [found, is_new] = known_.try_emplace(id, static_cast<OpIndex>(cells_.ops.size()));
    if (is_new) {
      cells_.ops.push_back({static_cast<Kind>(c_.kind[row]), id.stage, static_cast<std::int32_t>(id.nth), c_.chunk[row],
                            c_.global_chunk[row], c_.microbatch[row]});
    }
    return found->second;
  }

  // Only collectives: of messages the numbers count for one peer alone.
  bool has_number(const Launch& launch) const {
    return role_of(launch.kind) == Role::kCollective && !c_.communicator_number.empty() && !c_.communicator.empty() &&
           c_.communicator_number[launch.row] >= 0 && c_.communicator[launch.row] >= 0;
  }

  // Ops with an identity of their own; where it repeats, by number in the communicator, or else by launch index.
  void number_equal_ops(std::size_t worker) {
    const std::span<const Launch> launches = order_.of(worker);
    sorted_.clear();
    for (std::uint32_t i = 0; i < launches.size(); ++i) {
      if (role_of(launches[i].kind) == Role::kHost) continue;
      if (has_number(launches[i])) {
        const std::uint32_t row = launches[i].row;
        const auto communicator = static_cast<std::uint32_t>(c_.communicator[row]);
        const auto number = static_cast<std::uint32_t>(c_.communicator_number[row]);
        op_of(worker, i) = op_with(
            {c_.kind[row] | kNumbered, c_.stage[row], c_.chunk[row], c_.microbatch[row], communicator, number}, row);
      } else {
        sorted_.push_back(i);
      }
    }
    auto ids = [&](std::uint32_t i) {
      const std::uint32_t row = launches[i].row;
      return std::tuple(c_.kind[row], c_.chunk[row], c_.microbatch[row]);
    };
    std::sort(sorted_.begin(), sorted_.end(), [&](std::uint32_t a, std::uint32_t b) {
      if (ids(a) != ids(b)) return ids(a) < ids(b);
      return std::pair(c_.seq_id[launches[a].row], a) < std::pair(c_.seq_id[launches[b].row], b);
    });
    std::uint32_t nth = 0;
    for (std::size_t k = 0; k < sorted_.size(); ++k) {
      nth = k > 0 && ids(sorted_[k]) == ids(sorted_[k - 1]) ? nth + 1 : 0;
      const std::uint32_t row = launches[sorted_[k]].row;
      op_of(worker, sorted_[k]) =
          op_with({c_.kind[row], c_.stage[row], c_.chunk[row], c_.microbatch[row], IdCells::kNone, nth}, row);
    }
  }

  void identify_host_ops(std::size_t worker) {
    const std::span<const Launch> launches = order_.of(worker);
    std::uint32_t anchor = IdCells::kNone;
    counts_.clear();
    for (std::size_t i = 0; i < launches.size(); ++i) {
      const Role role = role_of(launches[i].kind);
      if (role == Role::kCompute) {
        anchor = op_of(worker, i);
        counts_.clear();
      }
      if (role != Role::kHost) continue;
      const std::uint32_t row = launches[i].row;
      const std::uint32_t kind_and_place = c_.kind[row] | (launches[i].was_inside ? kInside : 0u);
      op_of(worker, i) = op_with({kind_and_place, c_.stage[row], -1, -1, anchor, counts_[kind_and_place]++}, row);
    }
  }

  const OpColumns& c_;
  const LaunchOrder& order_;
  IdCells& cells_;
  std::unordered_map<Identity, OpIndex, IdentityHash> known_;
  std::vector<std::uint32_t> sorted_;
  std::unordered_map<std::uint32_t, std::uint32_t> counts_;
};

}  // namespace

Result<IdCells> identify(const OpColumns& columns, const JobLayout& layout, const LaunchOrder& order,
                         std::vector<std::int64_t> steps) {
  IdCells cells;
  cells.dp_size = static_cast<std::size_t>(layout.dp_size);
  cells.pp_size = static_cast<std::size_t>(layout.pp_size);
  cells.lane_count = steps.size() * cells.dp_size;
  cells.left_out.resize(steps.size());
  cells.steps = std::move(steps);
  Identifier(columns, order, cells).run();
  const std::size_t limit = kFreeCells + kMaxCellsPerRow * columns.size();
  if (cells.ops.size() > limit / cells.lane_count) {
    return Error{"the steps have too little in common: " + std::to_string(cells.ops.size()) + " different ops in " +
                 std::to_string(columns.size()) + " rows; is this one job, and are microbatch and chunk its own?"};
  }
  cells.launch.assign(cells.ops.size() * cells.lane_count, IdCells::kNone);
  for (std::size_t worker = 0; worker < order.worker_count(); ++worker) {
    const std::size_t lane = worker / cells.pp_size;
    for (std::size_t i = order.begin(worker); i < order.begin(worker + 1); ++i) {
      cells.launch[cells.op_of[i] * cells.lane_count + lane] = static_cast<std::uint32_t>(i);
    }
  }
  return cells;
}

std::string describe_by_ids(const Op& op) {
  std::string text(kind_name(op.kind));
  if (op.microbatch < 0 || op.seq_id > 0) text += " " + std::to_string(op.seq_id);
  if (op.microbatch >= 0) text += " of microbatch " + std::to_string(op.microbatch);
  if (op.chunk >= 0) text += (op.microbatch >= 0 ? ", chunk " : " of chunk ") + std::to_string(op.chunk);
  return text + " on stage " + std::to_string(op.stage);
}

}  // namespace smon_rt::analysis
