// The Runtime's part in what NCCL tells its profiler plug-in.

#include <sys/stat.h>

#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "api/environment.h"
#include "api/runtime.h"
#include "base/dynamic_library.h"
#include "base/log.h"

namespace smon_rt {

namespace {

/// "" or the path of this library, which is a copy of the one that records in this process: two instances would be two
/// recorders, of which NCCL has the wrong one.
std::string path_if_copy() {
  static const char here = 0;
  const std::optional<NcclInstance> named = named_nccl_instance();
  const std::string path = named ? library_path_of(&here) : "";
  struct stat status{};
  if (path.empty() || ::stat(path.c_str(), &status) != 0) return "";
  const NcclInstance own{static_cast<std::uint64_t>(status.st_dev), static_cast<std::uint64_t>(status.st_ino)};
  return own == *named ? "" : path;
}

// Why the job's own plug-in is not behind ours, "" if it is.
std::mutex g_chain_mutex;
std::string& chain_refusal() {
  static auto& refusal = *new std::string("NCCL has not come to its plug-in");  // no destructor at exit
  return refusal;
}

}  // namespace

template <typename Event>
void Runtime::load_nccl_chain(const typename nccl::Chain<Event>::Plugin& ours,
                              std::atomic<nccl::Chain<Event>*>& chain) noexcept {
  try {
    const std::string name = nccl_chain_name();
    if (name.empty()) return;
    static auto& tried = *new std::string;
    // Communicators that are made meanwhile wait, and find it.
    const std::lock_guard lock(g_chain_mutex);
    if (name == std::exchange(tried, name)) return;
    std::string why_not;
    auto loaded = nccl::Chain<Event>::load(name, ours, why_not);
    chain_refusal() = why_not;
    if (loaded == nullptr) log(LogLevel::kWarning, "SMON_RT_NCCL_CHAIN: " + why_not + "; NCCL calls smon_rt alone");
    chain.store(loaded.release(), std::memory_order_release);  // leaked: callbacks may come until the process ends
  } catch (...) {                                              // no memory
  }
}

template void Runtime::load_nccl_chain(const nccl::PluginV4&, std::atomic<nccl::Chain<nccl::EventV4>*>&) noexcept;
template void Runtime::load_nccl_chain(const nccl::PluginV5&, std::atomic<nccl::Chain<nccl::EventV5>*>&) noexcept;
template void Runtime::load_nccl_chain(const nccl::PluginV6&, std::atomic<nccl::Chain<nccl::EventV6>*>&) noexcept;

bool Runtime::is_copy_for_nccl() noexcept {
  static constinit std::atomic_flag is_said;
  try {
    const std::string copy = path_if_copy();
    if (copy.empty()) return false;
    if (!is_said.test_and_set(std::memory_order_relaxed)) {
      log(LogLevel::kWarning, "NCCL has loaded a copy of the recorder, " + copy +
                                  ", which stays inert: unset NCCL_PROFILER_PLUGIN, or set it to the library in use");
    }
  } catch (...) {  // no memory
  }
  return true;
}

nccl::Profiler* Runtime::make_nccl_profiler() noexcept {
  nccl::Profiler* profiler = g_nccl_profiler.load(std::memory_order_acquire);
  if (profiler != nullptr && profiler->tracker().is_ours()) return profiler;
  nccl::Profiler* made = nullptr;
  try {
    made = new nccl::Profiler;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  // NCCL may be loaded before recording starts, or after.
  made->set_recording(is_recording());
  // acquire and release: whoever sees the pointer sees the object. What is replaced, in a forked child, is leaked.
  if (g_nccl_profiler.compare_exchange_strong(profiler, made, std::memory_order_acq_rel)) return made;
  delete made;
  return profiler;
}

const CommTracker* Runtime::comm_tracker() noexcept {
  nccl::Profiler* profiler = nccl_profiler();
  return profiler != nullptr && profiler->tracker().is_ours() ? &profiler->tracker() : nullptr;
}

void Runtime::set_nccl_depth(bool is_recording_now) {
  nccl::Profiler* profiler = nccl_profiler();
  if (profiler != nullptr) profiler->set_recording(is_recording_now);
}

bool Runtime::wants_nccl_detail(const smon_config& config, const Environment& environment) const {
  return config.nccl_detail >= 0 ? config.nccl_detail != 0 : environment.nccl_detail;
}

/// The header of the file says why there are no times of kernels, or no other plug-in, if the job wants them.
void Runtime::note_nccl() {
  nccl::Profiler* profiler = nccl_profiler();
  if (session_ == nullptr) return;
  if (profiler != nullptr && profiler->wants_kernels()) {
    facts_.insert_or_assign(std::string(kKernelTimesFact), profiler->kernel_times_refusal());
  }
  if (const std::string name = nccl_chain_name(); !name.empty()) {
    const std::lock_guard lock(g_chain_mutex);
    facts_.insert_or_assign(std::string(kChainFact), chain_refusal());
  }
  TraceIdentity identity = session_->identity();
  apply_facts(identity);
  if (identity != session_->identity()) session_->set_identity(identity);  // each is a packet of the file
}

void Runtime::step_begun(const Recorder& recorder) noexcept {
  nccl::Profiler* profiler = nccl_profiler();
  if (profiler != nullptr && profiler->wants_kernels()) {
    profiler->step_begun(recorder.is_sampled(), recorder.is_warmup());
  }
}

void Runtime::step_ended() noexcept {
  nccl::Profiler* profiler = nccl_profiler();
  if (profiler != nullptr && profiler->wants_kernels()) profiler->step_ended();
}

void Runtime::capture_begun() noexcept {
  nccl::KernelTimes::capture_begun();
  if (nccl::Profiler* profiler = nccl_profiler()) profiler->captures_changed();
}

void Runtime::capture_ended() noexcept {
  nccl::KernelTimes::capture_ended();
  if (nccl::Profiler* profiler = nccl_profiler()) profiler->captures_changed();
}

void Runtime::add_nccl_status(smon_status& status) const {
  nccl::Profiler* profiler = nccl_profiler();
  const std::string refusal = profiler != nullptr ? profiler->kernel_times_refusal() : nccl::Profiler::kNotAskedFor;
  status.nccl_detail_refusal[refusal.copy(status.nccl_detail_refusal, sizeof(status.nccl_detail_refusal) - 1)] = '\0';
  if (profiler == nullptr) return;
  status.nccl_kernel_ops = profiler->tracker().kernel_ops();
  const CommCounts counts = profiler->tracker().counts();
  status.nccl_communicators = counts.communicators;
  status.nccl_ops = counts.ops;
  status.nccl_joined_ops = counts.joined_ops;
  status.nccl_foreign_handles = counts.foreign_handles;
  status.nccl_stale_handles = counts.stale_handles;
  status.nccl_lost_ends = counts.lost_ends;
  status.nccl_rejected_times = counts.rejected_times;
  status.nccl_untracked = counts.untracked;
}

}  // namespace smon_rt
