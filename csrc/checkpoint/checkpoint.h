#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/background_thread.h"
#include "base/result.h"
#include "checkpoint/agent_client.h"
#include "checkpoint/agent_messages.h"
#include "checkpoint/capture.h"
#include "checkpoint/capture_reports.h"
#include "checkpoint/gpu_copier.h"
#include "checkpoint/slot_set.h"

namespace smon_rt {

struct CheckpointOptions {
  AgentClientOptions client;
  CaptureOptions capture;
  /// Of each call that waits.
  std::chrono::nanoseconds timeout = std::chrono::seconds(30);
  /// Between attempts to get room for a layout that was refused.
  std::chrono::nanoseconds reserve_interval = std::chrono::seconds(5);
};

enum class CaptureResult : std::uint8_t { kBegun = 0, kNotDue = 1, kSkipped = 2 };

/// What a trainer knows of its checkpoints.
struct CheckpointStatus {
  bool is_connected = false;
  std::optional<Label> promised, copied, agreed, durable;
  std::uint64_t captures = 0, skips = 0;
  std::uint64_t content_bytes = 0, copied_bytes = 0, copy_ns = 0;
  std::uint64_t blocked_ns = 0, last_blocked_ns = 0, gpu_wait_ns = 0;
  std::uint64_t job_skips = 0;
  std::string last_skip;
  std::string error;
  std::string agent;
};

/// A trainer's checkpoints: captures into slots of the agent that promises them, and the steps of a restart.
///
/// Threading: capture, before_update and set_layout by the training thread; the rest by one control thread at a time,
/// status by any. One helper thread talks to the agent and enqueues the GPU's copies.
/// Cost: of capture and before_update see Capture. Neither waits for the agent.
class Checkpoint final : private AgentClient::Events {
 public:
  Checkpoint(CheckpointOptions options, std::unique_ptr<GpuCopier> copier);
  ~Checkpoint() override;

  Result<agent_messages::Welcome> open();
  /// False: a thread of ours did not end in time, and this must not be freed.
  bool close(bool is_job_over);

  Result<void> fence(std::uint32_t incarnation);
  Result<std::vector<agent_messages::HeldCopy>> list();
  Result<void> pin(Label label, std::vector<Label> kept);
  /// Until release().
  Result<std::span<const std::byte>> fetch(Label label, agent_messages::Tier tier);
  void release() { fetched_.reset(); }
  Result<void> go_on(std::uint32_t incarnation, std::uint64_t next_step);
  Result<void> reject(Label label, const std::string& reason);

  /// Before go_on it waits for room; afterwards steps are skipped until there is.
  Result<void> set_layout(std::span<const std::byte> header, std::span<const CaptureRange> ranges);
  CaptureResult capture(std::uint64_t step, std::span<const std::uint64_t> addresses, std::uint64_t stream);
  void before_update(std::uint64_t stream) { capture_.before_update(stream); }
  /// As many as the layout has ranges, from who knows only where they begin; null: none.
  std::span<const std::uint64_t> addresses(const std::uint64_t* first) const {
    if (first == nullptr || own_layout_ == nullptr) return {};
    return {first, own_layout_->addresses.size()};
  }
  bool is_due(std::uint64_t step) const { return step % every_ == 0; }
  bool is_copying() const { return capture_.is_under_way(); }

  CheckpointStatus status();

  /// In a forked child: closes what is the parent's. Everything else is left as it is, for good.
  void close_in_child() noexcept;

 private:
  struct Prepared {
    CaptureTarget target;
  };
  enum class Room : std::uint8_t { kNone, kWanted, kAsked, kThere, kRefused };

  // Helper thread.
  void run();
  void send_reports();
  bool serve_once();
  void ask_for_room();
  void take_room(std::shared_ptr<const CaptureLayout> layout, AgentClient::Reply reply);
  void look_for_agreed();
  std::vector<AgentClient::Request> welcomed(const agent_messages::Welcome& welcome) override;
  void promised(const agent_messages::Promise& promise) override;
  void dead(const agent_messages::Dead& dead) override;
  void lost(const std::string& why) override;
  bool may_connect() override { return !capture_.is_under_way(); }

  // Any thread.
  void ended(CaptureEnd end);
  void report_skip(Label label, agent_messages::SkipCause cause, const std::string& text);
  void note_skip(Label label, const std::string& who, agent_messages::SkipCause cause, const std::string& text);

  // Training thread.
  CaptureResult skip(std::uint64_t step, agent_messages::SkipCause cause, const std::string& text);
  std::unique_ptr<Prepared> take_promise(std::uint64_t step);
  std::chrono::steady_clock::time_point deadline() const;
  Result<void> ask_done(agent_messages::TrainerMessage message);
  Result<void> wait_for_room();

  const CheckpointOptions options_;
  const std::uint64_t every_;
  std::unique_ptr<GpuCopier> copier_;
  std::shared_ptr<const CaptureLayout> own_layout_;  // the training thread's
  bool is_copier_open_ = false;
  std::uint64_t staging_bytes_ = 0;
  std::shared_ptr<SlotMapping> fetched_;

  std::atomic<Prepared*> promise_{nullptr};
  std::atomic<std::uint32_t> incarnation_{0};
  std::atomic<bool> has_gone_on_{false};
  std::atomic<std::uint64_t> next_step_{0};
  std::atomic<std::uint64_t> dead_step_{~std::uint64_t{0}};
  CaptureReports reports_;

  // Under the lock: never held for longer than it takes to copy a few words.
  mutable std::mutex mutex_;
  std::shared_ptr<const CaptureLayout> layout_;
  Room room_ = Room::kNone;
  std::string room_refusal_;
  CheckpointStatus status_;

  // Helper thread.
  std::uint64_t promised_step_ = ~std::uint64_t{0};
  std::optional<Label> first_of_layout_;
  std::chrono::steady_clock::time_point next_reserve_{};
  std::chrono::steady_clock::time_point next_look_{};
  bool is_looking_ = false;

  AgentClient client_;
  SlotSet slots_;
  Capture capture_;
  BackgroundThread helper_;
};

}  // namespace smon_rt
