#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <tuple>
#include <utility>

#include "format/trace_reader.h"

namespace smon_rt {

/// Passes on what another visitor wants to know, each span, step, operation of NCCL and cost once, however often a file
/// was appended to itself or read again under another name. Within a process a span is told by its ring and index
/// there, a step by its number and start, an operation by its number; costs, which readers add up, by all that they
/// say.
///
/// Threading: one thread. Cost: a look-up a packet, a step and an operation of NCCL; some 60 bytes a step, an
/// operation, a ring, and a gap in a ring.
class OnceVisitor final : public TraceVisitor {
 public:
  explicit OnceVisitor(TraceVisitor& wrapped) : wrapped_(wrapped) {}

  std::uint64_t repeated_spans() const { return repeated_spans_; }
  std::uint64_t repeated_steps() const { return repeated_steps_; }

  void on_identity(const TraceIdentity& identity) override;
  void on_spans(const SpanBatch& batch) override;
  void on_step_times(std::span<const StepTime> step_times) override;
  void on_recorder_cost(const TraceRecorderCost& cost) override;
  void on_comm_ops(std::span<const TraceCommOp> ops) override;
  void on_names(const TraceNames& names) override { wrapped_.on_names(names); }
  void on_losses(const TraceLosses& losses) override { wrapped_.on_losses(losses); }
  void on_clock_snapshot(const TraceClockSnapshot& snapshot) override { wrapped_.on_clock_snapshot(snapshot); }
  void on_clock_map(const TraceClockMap& map) override { wrapped_.on_clock_map(map); }
  void on_end(std::string_view reason) override { wrapped_.on_end(reason); }
  void on_leftover(const TraceLeftover& leftover) override { wrapped_.on_leftover(leftover); }
  void on_comm_counts(const TraceCommCounts& counts) override { wrapped_.on_comm_counts(counts); }
  void on_comm_channels(std::span<const TraceCommChannel> channels) override { wrapped_.on_comm_channels(channels); }
  void on_damage(std::uint64_t offset, std::string_view what) override { wrapped_.on_damage(offset, what); }

 private:
  using Cost = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t, std::uint64_t>;
  struct Process {
    std::map<std::uint32_t, std::map<std::uint64_t, std::uint64_t>> taken;  // by ring: where ranges begin and end
    std::set<std::pair<std::uint32_t, std::int64_t>> steps;
    std::set<Cost> costs;
    std::set<std::uint64_t> comm_ops;  // their numbers
  };

  TraceVisitor& wrapped_;
  std::map<std::string, Process> processes_;
  Process* process_ = &processes_[""];  // of the identity read last
  std::uint64_t repeated_spans_ = 0;
  std::uint64_t repeated_steps_ = 0;
};

}  // namespace smon_rt
