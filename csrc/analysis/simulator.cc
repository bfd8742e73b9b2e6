#include "analysis/simulator.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

// The loops over lanes run with the widest vectors that the processor has, chosen when the library is loaded: wheels
// are built for any x86-64. Sanitizers and the dynamic choice do not mix, other compilers inline less: both run as they
// are.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define SMON_WIDE_VECTORS __attribute__((target_clones("avx2", "default"), flatten))
#else
#define SMON_WIDE_VECTORS
#endif

namespace smon_rt::analysis {
namespace {

// Enough lanes that the overhead of an instruction disappears, few enough that the live slots, and for usual steps the
// durations too, stay in the second-level cache.
constexpr std::size_t kLanesPerBlock = 96;

// target[i] = ready(i) + the op's value, for `count` lanes from `first_lane` on. One pass, whatever the value is: these
// loops are nearly all of the engine's time. ready may read target[i], hence no __restrict on it.
template <typename Ready>
void add_values(double* target, Ready ready, const OpValues& values, std::size_t first_lane, std::size_t count) {
  const double constant = values.constant;
  if (values.lanes == nullptr) {
    for (std::size_t i = 0; i < count; ++i) target[i] = ready(i) + constant;
    return;
  }
  const double* lanes = values.lanes + first_lane;
  if (values.mask == nullptr) {
    for (std::size_t i = 0; i < count; ++i) target[i] = ready(i) + lanes[i];
    return;
  }
  const std::uint64_t* mask = values.mask + first_lane;
  for (std::size_t i = 0; i < count; ++i) target[i] = ready(i) + (mask[i] != 0 ? lanes[i] : constant);
}

void max_into(double* __restrict target, const double* __restrict values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) target[i] = std::max(target[i], values[i]);
}

void last_of_each_step(double* lanes, std::size_t count, std::size_t dp_size) {
  for (std::size_t begin = 0; begin < count; begin += dp_size) {
    double last = lanes[begin];
    for (std::size_t i = 1; i < dp_size; ++i) last = std::max(last, lanes[begin + i]);
    std::fill_n(lanes + begin, dp_size, last);
  }
}

void last_of_each_part(double* lanes, std::size_t count, const std::vector<std::uint32_t>& parts,
                       std::vector<double>& last) {
  const std::size_t dp_size = parts.size();
  for (std::size_t begin = 0; begin < count; begin += dp_size) {
    last.assign(dp_size, -std::numeric_limits<double>::infinity());
    for (std::size_t i = 0; i < dp_size; ++i) last[parts[i]] = std::max(last[parts[i]], lanes[begin + i]);
    for (std::size_t i = 0; i < dp_size; ++i) lanes[begin + i] = last[parts[i]];
  }
}

void append_last_of_steps(const double* lanes, std::size_t steps, std::size_t dp_size, std::vector<double>& ends) {
  for (std::size_t i = 0; i < steps; ++i, lanes += dp_size) ends.push_back(*std::max_element(lanes, lanes + dp_size));
}

/// Stand-ins for the other dp ranks of each lane's step; see Simulator::replay_each_against_ideal.
struct StandIns {
  const std::vector<double>& ideal;
  std::size_t count = 1;
  const std::uint32_t* lanes = nullptr;  // [lane · count + i]; null: each has all ops
};

/// One block of lanes on its way through the program. With stand-ins, those of all lanes lie behind the lanes in each
/// slot: the first of every lane, then the second of every lane, …
class Block {
 public:
  Block(const ReplayProgram& program, const LaneMask* takes_part, const StandIns* stand_ins, std::size_t dp_size,
        std::size_t lane_capacity)
      : program_(program),
        takes_part_(takes_part),
        stand_ins_(stand_ins),
        dp_size_(dp_size),
        copies_(stand_ins == nullptr ? 1 : 1 + stand_ins->count),
        stride_(copies_ * lane_capacity),
        slots_((program.slot_count + 3) * stride_),
        group_start_(slots_.data() + program.slot_count * stride_),
        optimizer_end_(group_start_ + stride_),
        last_end_(optimizer_end_ + stride_) {}

  void run(const Scenario& scenario, std::size_t first_lane, std::size_t lane_count) {
    scenario_ = &scenario;
    first_lane_ = first_lane;
    lane_count_ = lane_count;
    width_ = copies_ * lane_count;
    std::fill_n(optimizer_end_, 2 * stride_, 0.0);
    for (const ReplayProgram::Instruction& instruction : program_.instructions) {
      if (instruction.action == ReplayProgram::Action::kComplete) {
        complete(instruction);
      } else {
        start(instruction);
      }
    }
  }

  /// One value per lane; with stand-ins theirs behind it.
  const double* optimizer_end() const { return optimizer_end_; }
  const double* last_end() const { return last_end_; }

 private:
  double* slot(std::uint32_t index) { return slots_.data() + index * stride_; }

  void start(const ReplayProgram::Instruction& instruction) {
    double* target = slot(instruction.target);
    const std::span<const std::uint32_t> operands = program_.operands_of(instruction);
    switch (operands.size()) {
      case 0:
        return start_at(instruction, target, [](std::size_t) { return 0.0; });
      case 1:
        return start_at(instruction, target, [a = slot(operands[0])](std::size_t i) { return a[i]; });
      case 2:
        return start_at(instruction, target,
                        [a = slot(operands[0]), b = slot(operands[1])](std::size_t i) { return std::max(a[i], b[i]); });
      default:
        std::copy_n(slot(operands.front()), width_, target);
        for (std::uint32_t operand : operands.subspan(1)) max_into(target, slot(operand), width_);
        return start_at(instruction, target, [target](std::size_t i) { return target[i]; });
    }
  }

  template <typename Ready>
  void start_at(const ReplayProgram::Instruction& instruction, double* target, Ready ready) {
    const bool runs = instruction.action == ReplayProgram::Action::kRun;
    if (scenario_->launch_delays.empty()) {
      if (runs) return end(instruction.op, target, ready);
      for (std::size_t i = 0; i < width_; ++i) target[i] = ready(i);
    } else {
      add_values(target, ready, scenario_->launch_delays[instruction.op], first_lane_, lane_count_);
      if (runs) return end(instruction.op, target, [target](std::size_t i) { return target[i]; });
    }
    if (takes_part_ != nullptr) clear_absent(instruction.op, target);
  }

  // Time 0 for who lacks the op: the start of the step, which keeps nobody waiting.
  void clear_absent(OpIndex op, double* times) {
    const std::uint64_t* mask = takes_part_->of(op);
    if (mask == nullptr) return;
    for (std::size_t i = 0; i < lane_count_; ++i) times[i] = mask[first_lane_ + i] != 0 ? times[i] : 0;
    for (std::size_t copy = 1; copy < copies_; ++copy) {
      times += lane_count_;
      const std::uint32_t* lanes = stand_ins_->lanes + first_lane_ * stand_ins_->count + copy - 1;
      for (std::size_t i = 0; i < lane_count_; ++i) {
        times[i] = mask[lanes[i * stand_ins_->count]] != 0 ? times[i] : 0;
      }
    }
  }

  void complete(const ReplayProgram::Instruction& instruction) {
    const std::span<const ReplayProgram::Member> members = program_.members_of(instruction);
    std::copy_n(slot(members.front().slot), width_, group_start_);
    for (const ReplayProgram::Member& member : members.subspan(1)) {
      max_into(group_start_, slot(member.slot), width_);
    }
    if (instruction.spans_dp && dp_size_ > 1) wait_for_dp_ranks(program_.dp_parts[instruction.parts]);
    for (const ReplayProgram::Member& member : members) {
      end(member.op, slot(member.slot), [start = group_start_](std::size_t i) { return start[i]; });
    }
  }

  void wait_for_dp_ranks(const std::vector<std::uint32_t>& parts) {
    if (stand_ins_ == nullptr && parts.empty()) return last_of_each_step(group_start_, lane_count_, dp_size_);
    if (stand_ins_ == nullptr) return last_of_each_part(group_start_, lane_count_, parts, scratch_);
    if (!parts.empty()) return wait_for_stand_ins_of_part(parts);
    for (std::size_t copy = 1; copy < copies_; ++copy) {
      max_into(group_start_, group_start_ + copy * lane_count_, lane_count_);
    }
    for (std::size_t copy = 1; copy < copies_; ++copy) {
      std::copy_n(group_start_, lane_count_, group_start_ + copy * lane_count_);
    }
  }

  // Each lane and its stand-ins among themselves, each with those of its part.
  void wait_for_stand_ins_of_part(const std::vector<std::uint32_t>& parts) {
    for (std::size_t i = 0; i < lane_count_; ++i) {
      const std::size_t lane = first_lane_ + i;
      const auto part_of = [&](std::size_t copy) {
        return parts[(copy == 0 ? lane : stand_ins_->lanes[lane * stand_ins_->count + copy - 1]) % dp_size_];
      };
      scratch_.assign(dp_size_, -std::numeric_limits<double>::infinity());
      for (std::size_t copy = 0; copy < copies_; ++copy) {
        double& last = scratch_[part_of(copy)];
        last = std::max(last, group_start_[copy * lane_count_ + i]);
      }
      for (std::size_t copy = 0; copy < copies_; ++copy) group_start_[copy * lane_count_ + i] = scratch_[part_of(copy)];
    }
  }

  template <typename Ready>
  void end(OpIndex op, double* times, Ready ready) {
    add_values(times, ready, scenario_->durations[op], first_lane_, lane_count_);
    if (stand_ins_ != nullptr) {
      const double duration = stand_ins_->ideal[op];
      for (std::size_t i = lane_count_; i < width_; ++i) times[i] = ready(i) + duration;
    }
    if (takes_part_ != nullptr) clear_absent(op, times);
    if (program_.ends_step[op]) max_into(optimizer_end_, times, width_);
    if (program_.is_sink[op]) max_into(last_end_, times, width_);
  }

  const ReplayProgram& program_;
  const Scenario* scenario_ = nullptr;
  const LaneMask* takes_part_;
  const StandIns* stand_ins_;
  std::size_t dp_size_;
  std::size_t copies_;  // of each lane in a slot: itself and its stand-ins
  std::size_t stride_;
  std::vector<double> slots_;
  std::vector<double> scratch_;
  double* group_start_;
  double* optimizer_end_;
  double* last_end_;
  std::size_t first_lane_ = 0;
  std::size_t lane_count_ = 0;
  std::size_t width_ = 0;
};

}  // namespace

Simulator::Simulator(const OpGraph& graph, std::size_t dp_size, std::size_t step_count, const LaneMask* takes_part)
    : program_(compile(graph)),
      dp_size_(dp_size),
      step_count_(step_count),
      takes_part_(takes_part == nullptr || takes_part->is_everything() ? nullptr : takes_part),
      is_last_the_end_(!graph.step_ends_with_optimizer()) {
  // An op that others wait for may still be the last one: in a lane that lacks them, or where delays are negative.
  if (takes_part_ != nullptr || is_last_the_end_) program_.is_sink.assign(graph.size(), !is_last_the_end_);
}

Simulator::StandInChoice Simulator::choose_stand_ins() const {
  StandInChoice result;
  if (takes_part_ == nullptr && program_.dp_parts.size() <= 1) return result;
  const std::vector<std::uint32_t> shapes =
      takes_part_ == nullptr ? std::vector<std::uint32_t>(lane_count(), 0) : takes_part_->shapes();
  std::vector<std::vector<std::uint32_t>> chosen(lane_count());
  for (std::size_t lane = 0; lane < lane_count(); ++lane) {
    if (takes_part_ == nullptr && lane >= dp_size_) {
      // Where all lanes have all ops each step is like the first.
      chosen[lane] = chosen[lane - dp_size_];
      for (std::uint32_t& other : chosen[lane]) other += static_cast<std::uint32_t>(dp_size_);
    } else {
      chosen[lane] = stand_ins_of(lane, shapes);
    }
    // Alone in its step: never asked, and the lane itself is as good as any.
    if (chosen[lane].empty()) chosen[lane].push_back(static_cast<std::uint32_t>(lane));
    result.count = std::max(result.count, chosen[lane].size());
  }
  // Where a lane needs fewer than the most, one of its own comes twice: that changes nothing.
  for (std::vector<std::uint32_t>& lanes : chosen) {
    lanes.resize(result.count, lanes.front());
    result.lanes.insert(result.lanes.end(), lanes.begin(), lanes.end());
  }
  return result;
}

// One for each set of other dp ranks that are alike: the same ops, and the same parts in common with the lane's rank.
std::vector<std::uint32_t> Simulator::stand_ins_of(std::size_t lane, const std::vector<std::uint32_t>& shapes) const {
  const std::size_t first = lane / dp_size_ * dp_size_;
  const auto are_alike = [&](std::size_t one, std::size_t other) {
    if (shapes[one] != shapes[other]) return false;
    return std::all_of(program_.dp_parts.begin() + 1, program_.dp_parts.end(), [&](const auto& parts) {
      return (parts[one - first] == parts[lane - first]) == (parts[other - first] == parts[lane - first]);
    });
  };
  std::vector<std::uint32_t> chosen, everybody;
  std::vector<std::uint32_t> stand_in_of(dp_size_);
  for (std::size_t other = first; other < first + dp_size_; ++other) {
    stand_in_of[other - first] = static_cast<std::uint32_t>(other);
    if (other == lane) continue;
    everybody.push_back(static_cast<std::uint32_t>(other));
    const auto known =
        std::find_if(chosen.begin(), chosen.end(), [&](std::uint32_t one) { return are_alike(one, other); });
    if (known == chosen.end()) {
      chosen.push_back(static_cast<std::uint32_t>(other));
    } else {
      stand_in_of[other - first] = *known;
    }
  }
  return stand_for_all(lane, stand_in_of) ? chosen : everybody;
}

// True where the stand-ins of each rank's partners are the partners, among lane and stand-ins, of its own stand-in.
// Then whatever holds a rank up holds up its stand-in, at the same time.
bool Simulator::stand_for_all(std::size_t lane, const std::vector<std::uint32_t>& stand_in_of) const {
  const std::size_t first = lane / dp_size_ * dp_size_;
  const auto is_one = [&](std::size_t rank) { return stand_in_of[rank] == first + rank; };
  for (std::size_t i = 1; i < program_.dp_parts.size(); ++i) {
    const std::vector<std::uint32_t>& parts = program_.dp_parts[i];
    // Of each part the stand-ins in it, and those of all of its ranks: [part][rank].
    std::vector<std::vector<bool>> own(dp_size_, std::vector<bool>(dp_size_)), of_all = own;
    for (std::size_t rank = 0; rank < dp_size_; ++rank) {
      if (is_one(rank)) own[parts[rank]][rank] = true;
      of_all[parts[rank]][stand_in_of[rank] - first] = true;
    }
    for (std::size_t rank = 0; rank < dp_size_; ++rank) {
      if (of_all[parts[rank]] != own[parts[stand_in_of[rank] - first]]) return false;
    }
  }
  return true;
}

std::size_t Simulator::steps_per_block() const {
  return std::min(step_count_, std::max(std::size_t{1}, kLanesPerBlock / dp_size_));
}

StepEnds Simulator::replay(const Scenario& scenario) const {
  return std::move(replay_all({&scenario, 1}).front());
}

SMON_WIDE_VECTORS std::vector<StepEnds> Simulator::replay_all(std::span<const Scenario> scenarios) const {
  std::vector<StepEnds> ends(scenarios.size());
  const std::size_t block_steps = steps_per_block();
  Block block(program_, takes_part_, nullptr, dp_size_, block_steps * dp_size_);
  for (std::size_t step = 0; step < step_count_; step += block_steps) {
    const std::size_t steps = std::min(block_steps, step_count_ - step);
    for (std::size_t i = 0; i < scenarios.size(); ++i) {
      block.run(scenarios[i], step * dp_size_, steps * dp_size_);
      append_last_of_steps(block.optimizer_end(), steps, dp_size_, ends[i].optimizer);
      append_last_of_steps(is_last_the_end_ ? block.optimizer_end() : block.last_end(), steps, dp_size_, ends[i].last);
    }
  }
  return ends;
}

SMON_WIDE_VECTORS std::vector<double> Simulator::replay_each_against_ideal(const Scenario& scenario,
                                                                           const std::vector<double>& ideal) const {
  std::vector<double> ends(lane_count());
  const std::size_t block_steps = steps_per_block();
  // Only here: among many dp ranks choosing them takes longer than a replay.
  const StandInChoice choice = choose_stand_ins();
  const StandIns stand_ins{ideal, choice.count, choice.lanes.data()};
  Block block(program_, takes_part_, &stand_ins, dp_size_, block_steps * dp_size_);
  for (std::size_t step = 0; step < step_count_; step += block_steps) {
    const std::size_t lanes = std::min(block_steps, step_count_ - step) * dp_size_;
    block.run(scenario, step * dp_size_, lanes);
    const double* own = block.optimizer_end();
    std::copy_n(own, lanes, ends.data() + step * dp_size_);
    // With one dp rank there are no others to wait for.
    for (std::size_t i = 1; dp_size_ > 1 && i <= choice.count; ++i) {
      max_into(ends.data() + step * dp_size_, own + i * lanes, lanes);
    }
  }
  return ends;
}

}  // namespace smon_rt::analysis
