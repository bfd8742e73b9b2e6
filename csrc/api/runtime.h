#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/environment.h"
#include "api/session.h"
#include "api/smon_rt.h"
#include "base/process_state.h"
#include "base/result.h"
#include "cuda/nccl_chain.h"
#include "cuda/nccl_profiler.h"
#include "record/gpu_timer.h"
#include "record/recorder.h"

namespace smon_rt {

/// The one of this process: what the C interface works on. Made when first needed, never freed; without a constructor
/// or destructor that the loader would run.
///
/// A forked child gets a new one, in which nothing is started: locks of the old one may be held by threads that the
/// child does not have.
///
/// Exit without stop: an exit handler does what stop does, in bounded time and without a lock, so that the file is
/// whole whenever exit() runs. What ends a process in another way (_exit, a signal) leaves spans in the arena, for the
/// next start on this node, or `smon info`, to merge.
///
/// Threading: any thread; control functions take a lock, which nothing of the job's hot path does.
class Runtime {
 public:
  static Runtime& get();

  /// The recorder of the session, for the hot path. Not null once recording is on; never freed.
  static Recorder* recorder() noexcept { return g_recorder.load(std::memory_order_acquire); }

  /// What NCCL tells its plug-in goes to, for callbacks. Null until NCCL's first communicator; never freed.
  static nccl::Profiler* nccl_profiler() noexcept { return g_nccl_profiler.load(std::memory_order_acquire); }
  /// Makes it; another one in a forked child, where handles of the parent mean nothing. Null: no memory.
  static nccl::Profiler* make_nccl_profiler() noexcept;
  /// What that one knows; null where it is a parent process's.
  static const CommTracker* comm_tracker() noexcept;
  /// Whether NCCL has loaded this library beside the one that Python named to it (SMON_RT_NCCL_INSTANCE); said once.
  static bool is_copy_for_nccl() noexcept;
  /// The plug-in that the job wants behind ours (SMON_RT_NCCL_CHAIN) becomes `chain`, unless its name was tried before.
  template <typename Event>
  static void load_nccl_chain(const typename nccl::Chain<Event>::Plugin& ours,
                              std::atomic<nccl::Chain<Event>*>& chain) noexcept;
  /// What NCCL is asked for changes at the border of a step, and around captures of graphs.
  static void step_begun(const Recorder& recorder) noexcept;
  static void step_ended() noexcept;
  static void capture_begun() noexcept;
  static void capture_ended() noexcept;

  smon_result start(const smon_config* config);
  smon_result stop();
  void pause();
  void resume();
  smon_result set_layout(const smon_layout& layout);
  smon_result set_fact(std::string_view key, std::string_view value);
  smon_result request_sampling(std::int64_t first_step, std::int32_t step_count);
  void read_status(smon_status& status);
  const char* last_error() const { return last_error_.data(); }

  /// Calls function(recorder) under the lock if a session is there; otherwise gives the default.
  template <typename Function>
  auto with_recorder(Function&& function) -> decltype(function(std::declval<Recorder&>())) {
    const std::lock_guard lock(mutex_);
    if (session_ == nullptr) return {};
    return function(session_->recorder());
  }

  smon_result fail(smon_result result, std::string_view message);

 private:
  explicit Runtime(Runtime* before) : before_(before), fork_count_(::smon_rt::fork_count()) {}
  static void on_exit();

  smon_result start_locked(const smon_config& config, const Environment& environment);
  smon_result fail_locked(smon_result result, std::string_view message);
  SessionOptions session_options(const smon_config& config, const Environment& environment) const;
  void apply_facts(TraceIdentity& identity) const;
  bool is_still_stopping();
  GpuTimer* gpu_timer();
  void set_nccl_depth(bool is_recording_now);
  bool wants_nccl_detail(const smon_config& config, const Environment& environment) const;
  void note_nccl();
  void add_nccl_status(smon_status& status) const;

  static constexpr std::string_view kKernelTimesFact = "hook.nccl.kernel_times";
  static constexpr std::string_view kChainFact = "hook.nccl.chain";

  static constinit std::atomic<Recorder*> g_recorder;
  static constinit std::atomic<Runtime*> g_runtime;
  static constinit std::atomic<nccl::Profiler*> g_nccl_profiler;

  // The parent process's, never touched: kept so that what hangs on it is not taken for a leak.
  [[maybe_unused]] Runtime* const before_;
  const std::uint32_t fork_count_;
  mutable std::mutex mutex_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Session> stopping_;       // one whose stop ran out of time
  std::atomic<Session*> running_{nullptr};  // taken by whoever stops it: stop() or the exit handler
  std::vector<Recorder*> retired_;          // closed, and kept: a thread of the job may still be inside one
  bool is_paused_ = false;
  std::unique_ptr<GpuTimer> gpu_timer_;  // of all sessions: what it makes stays with the GPU's contexts
  bool has_looked_for_gpu_ = false;
  TraceLayout layout_;
  std::map<std::string, std::string, std::less<>> facts_;
  smon_status last_status_{};  // of the last session
  std::array<char, 512> last_error_{};
};

}  // namespace smon_rt
