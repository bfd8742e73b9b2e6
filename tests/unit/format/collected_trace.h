#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/trace_reader.h"

namespace smon_rt::test {

inline bool equal(const Span& a, const Span& b) {
  return std::memcmp(&a, &b, sizeof(Span)) == 0;
}

inline bool equal(std::span<const Span> a, std::span<const Span> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

struct CollectedBatch {
  std::uint32_t ring_id = 0;
  std::uint64_t first_index = 0;
  std::vector<Span> spans;

  friend bool operator==(const CollectedBatch& a, const CollectedBatch& b) {
    return a.ring_id == b.ring_id && a.first_index == b.first_index && equal(a.spans, b.spans);
  }
};

struct Damage {
  std::uint64_t offset = 0;
  std::string what;

  friend bool operator==(const Damage&, const Damage&) = default;
};

/// Everything a trace holds, in lists.
struct CollectedTrace final : TraceVisitor {
  std::vector<TraceIdentity> identities;
  std::vector<CollectedBatch> batches;
  std::vector<std::vector<StepTime>> step_times;
  std::vector<TraceNames> names;
  std::vector<TraceLosses> losses;
  std::vector<TraceClockSnapshot> clock_snapshots;
  std::vector<TraceClockMap> clock_maps;
  std::vector<TraceRecorderCost> costs;
  std::vector<std::string> ends;
  std::vector<TraceLeftover> leftovers;
  std::vector<TraceCommOp> comm_ops;
  std::vector<TraceCommCounts> comm_counts;
  std::vector<TraceCommChannel> comm_channels;
  std::vector<Damage> damages;
  TraceSummary summary;

  void on_identity(const TraceIdentity& identity) override { identities.push_back(identity); }
  void on_spans(const SpanBatch& batch) override {
    batches.push_back({batch.ring_id, batch.first_index, {batch.spans.begin(), batch.spans.end()}});
  }
  void on_step_times(std::span<const StepTime> times) override { step_times.emplace_back(times.begin(), times.end()); }
  void on_names(const TraceNames& all) override { names.push_back(all); }
  void on_losses(const TraceLosses& all) override { losses.push_back(all); }
  void on_clock_snapshot(const TraceClockSnapshot& snapshot) override { clock_snapshots.push_back(snapshot); }
  void on_clock_map(const TraceClockMap& map) override { clock_maps.push_back(map); }
  void on_recorder_cost(const TraceRecorderCost& cost) override { costs.push_back(cost); }
  void on_end(std::string_view reason) override { ends.emplace_back(reason); }
  void on_leftover(const TraceLeftover& leftover) override { leftovers.push_back(leftover); }
  void on_comm_ops(std::span<const TraceCommOp> ops) override {
    comm_ops.insert(comm_ops.end(), ops.begin(), ops.end());
  }
  void on_comm_counts(const TraceCommCounts& counts) override { comm_counts.push_back(counts); }
  void on_comm_channels(std::span<const TraceCommChannel> channels) override {
    comm_channels.insert(comm_channels.end(), channels.begin(), channels.end());
  }
  void on_damage(std::uint64_t offset, std::string_view what) override {
    damages.push_back({offset, std::string(what)});
  }

  std::vector<Span> all_spans() const {
    std::vector<Span> all;
    for (const CollectedBatch& batch : batches) all.insert(all.end(), batch.spans.begin(), batch.spans.end());
    return all;
  }

  /// The same content, whatever the damages and counts.
  bool same_content(const CollectedTrace& other) const {
    return identities == other.identities && batches == other.batches && step_times == other.step_times &&
           names == other.names && losses == other.losses && clock_snapshots == other.clock_snapshots &&
           clock_maps == other.clock_maps && costs == other.costs && ends == other.ends &&
           leftovers == other.leftovers && comm_ops == other.comm_ops && comm_counts == other.comm_counts &&
           comm_channels == other.comm_channels;
  }
};

inline CollectedTrace collect(std::string_view bytes, const StepFilter& filter = {}) {
  CollectedTrace trace;
  trace.summary = read_trace(std::as_bytes(std::span(bytes)), filter, trace);
  return trace;
}

}  // namespace smon_rt::test
