#include "checkpoint/checkpoint.h"

#include <time.h>

#include <algorithm>
#include <utility>

namespace smon_rt {
namespace {

using agent_messages::Dead;
using agent_messages::SkipCause;
using agent_messages::Welcome;
using std::chrono::steady_clock;

constexpr std::uint64_t kNoStep = ~std::uint64_t{0};

Error unexpected_answer() {
  return Error{"checkpoint agent: its answer is of another kind than was asked for"};
}

void nap() {
  const timespec time{0, 1'000'000};
  ::nanosleep(&time, nullptr);
}

}  // namespace

Checkpoint::Checkpoint(CheckpointOptions options, std::unique_ptr<GpuCopier> copier)
    : options_(std::move(options)),
      every_(std::max<std::uint64_t>(1, options_.client.hello.every)),
      copier_(std::move(copier)),
      client_(options_.client, *this),
      slots_(*copier_),
      capture_(
          *copier_, {options_.client.hello.run_id, options_.client.hello.owner, options_.client.hello.topology},
          options_.capture, [this](CaptureEnd end) { ended(std::move(end)); }, [this] { client_.wake(); }),
      helper_("smon_ckpt") {}

Checkpoint::~Checkpoint() {
  delete promise_.exchange(nullptr);
}

steady_clock::time_point Checkpoint::deadline() const {
  return steady_clock::now() + options_.timeout;
}

Result<Welcome> Checkpoint::open() {
  if (auto started = helper_.start([this] { run(); }); !started) return std::move(started).error();
  return client_.wait_for_welcome(deadline());
}

bool Checkpoint::close(bool is_job_over) {
  has_gone_on_.store(false, std::memory_order_relaxed);
  constexpr auto kPatience = std::chrono::seconds(2);
  if (!capture_.wait_until_ended()) capture_.cancel(SkipCause::kCancelled, "the checkpoint is closed");
  const auto until = steady_clock::now() + kPatience;
  while (capture_.is_under_way() && steady_clock::now() < until) nap();
  if (is_job_over && client_.is_connected()) {
    (void)client_.ask(agent_messages::Bye{}, steady_clock::now() + kPatience);
  }
  helper_.request_stop();
  client_.wake();
  const bool has_ended = helper_.join_until(steady_clock::now() + kPatience);
  if (!has_ended || capture_.is_under_way()) return false;
  slots_.clear();
  fetched_.reset();
  return true;
}

// ---- a restart

Result<void> Checkpoint::ask_done(agent_messages::TrainerMessage message) {
  auto reply = client_.ask(std::move(message), deadline());
  if (!reply) return std::move(reply).error();
  if (!std::holds_alternative<agent_messages::Done>(reply->message)) return unexpected_answer();
  return {};
}

Result<void> Checkpoint::fence(std::uint32_t incarnation) {
  has_gone_on_.store(false, std::memory_order_relaxed);
  capture_.cancel(SkipCause::kCancelled, "a restart begins");
  capture_.wait_until_ended();
  delete promise_.exchange(nullptr, std::memory_order_acq_rel);
  incarnation_.store(incarnation, std::memory_order_relaxed);
  return ask_done(agent_messages::Fence{incarnation});
}

Result<std::vector<agent_messages::HeldCopy>> Checkpoint::list() {
  auto reply = client_.ask(agent_messages::List{options_.client.hello.owner}, deadline());
  if (!reply) return std::move(reply).error();
  auto* listing = std::get_if<agent_messages::Listing>(&reply->message);
  if (listing == nullptr) return unexpected_answer();
  return std::move(listing->copies);
}

Result<void> Checkpoint::pin(Label label, std::vector<Label> kept) {
  return ask_done(agent_messages::Pin{label, std::move(kept)});
}

Result<std::span<const std::byte>> Checkpoint::fetch(Label label, agent_messages::Tier tier) {
  auto reply = client_.ask(agent_messages::Fetch{options_.client.hello.owner, label, tier}, deadline());
  if (!reply) return std::move(reply).error();
  const auto* fetched = std::get_if<agent_messages::Fetched>(&reply->message);
  if (fetched == nullptr) return unexpected_answer();
  if (reply->descriptors.empty()) return Error{"checkpoint agent: it gave no descriptor of what was fetched"};
  auto mapping = SlotMapping::map_readable(std::move(reply->descriptors.front()), fetched->content_bytes);
  if (!mapping) return std::move(mapping).error();
  const SlotHeader& header = (*mapping)->header();
  const bool is_whole = header.generation.load(std::memory_order_acquire) % 2 == 0;
  if (header.magic != kSlotMagic || !is_whole || header.content_bytes != fetched->content_bytes ||
      Label{header.incarnation, header.step} != label) {
    return Error{"checkpoint agent: what it gave is not the copy that was asked for"};
  }
  fetched_ = std::move(*mapping);
  return std::span<const std::byte>(fetched_->content());
}

Result<void> Checkpoint::go_on(std::uint32_t incarnation, std::uint64_t next_step) {
  // Before the answer: a promise may come right behind it.
  incarnation_.store(incarnation, std::memory_order_relaxed);
  next_step_.store(next_step, std::memory_order_relaxed);
  dead_step_.store(kNoStep, std::memory_order_relaxed);
  if (auto done = ask_done(agent_messages::GoOn{incarnation, next_step}); !done) return done;
  has_gone_on_.store(true, std::memory_order_relaxed);
  return {};
}

Result<void> Checkpoint::reject(Label label, const std::string& reason) {
  return ask_done(agent_messages::Reject{label, reason});
}

// ---- training thread

Result<void> Checkpoint::set_layout(std::span<const std::byte> header, std::span<const CaptureRange> ranges) {
  const std::uint32_t epoch = own_layout_ == nullptr ? 1 : own_layout_->epoch + 1;
  auto layout = CaptureLayout::make(epoch, header, ranges);
  if (!layout) return std::move(layout).error();
  if ((*layout)->has_gpu()) {
    const std::uint64_t needed = (*layout)->gpu_volatile_bytes;
    if (!is_copier_open_) {
      staging_bytes_ = needed + needed / 4 + (std::uint64_t{1} << 20);  // some room to grow: it is had once
      if (auto opened = copier_->open(staging_bytes_); !opened) return opened;
      is_copier_open_ = true;
    } else if (needed > staging_bytes_) {
      return Error{"checkpoint layout: volatile GPU state grew to " + std::to_string(needed) + " bytes, beyond the " +
                   std::to_string(staging_bytes_) + " that are staged: attach again"};
    }
  }
  own_layout_ = *layout;
  {
    const std::lock_guard lock(mutex_);
    layout_ = std::move(*layout);
    room_ = Room::kWanted;
    room_refusal_.clear();
    status_.content_bytes = own_layout_->content_bytes;
  }
  client_.wake();
  return has_gone_on_.load(std::memory_order_relaxed) ? Result<void>() : wait_for_room();
}

Result<void> Checkpoint::wait_for_room() {
  const auto until = deadline();
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (room_ == Room::kThere) return {};
      if (room_ == Room::kRefused) return Error{room_refusal_};
    }
    if (steady_clock::now() >= until) {
      const std::string why = client_.problem();
      return Error{why.empty() ? "checkpoint agent: it gave no room for the state in time" : why};
    }
    nap();
  }
}

std::unique_ptr<Checkpoint::Prepared> Checkpoint::take_promise(std::uint64_t step) {
  std::unique_ptr<Prepared> prepared(promise_.exchange(nullptr, std::memory_order_acquire));
  if (prepared == nullptr || prepared->target.label.step == step) return prepared;
  if (prepared->target.label.step > step) {  // of a step to come
    Prepared* none = nullptr;
    if (promise_.compare_exchange_strong(none, prepared.get(), std::memory_order_release)) (void)prepared.release();
    return nullptr;
  }
  report_skip(prepared->target.label, SkipCause::kNoPromise, "the step was passed");
  return nullptr;
}

CaptureResult Checkpoint::capture(std::uint64_t step, std::span<const std::uint64_t> addresses, std::uint64_t stream) {
  if (!is_due(step)) return CaptureResult::kNotDue;
  if (!has_gone_on_.load(std::memory_order_relaxed)) return CaptureResult::kSkipped;
  next_step_.store(step + 1, std::memory_order_relaxed);
  const std::unique_ptr<Prepared> prepared = take_promise(step);
  if (prepared == nullptr) {
    if (dead_step_.load(std::memory_order_relaxed) == step) return skip(step, SkipCause::kDead, "");
    return skip(step, SkipCause::kNoPromise, client_.is_connected() ? "" : "no agent is connected");
  }
  CaptureTarget& target = prepared->target;
  if (target.layout != own_layout_) return skip(step, SkipCause::kLayout, "");
  if (!capture_.wait_until_ended()) return skip(step, SkipCause::kFailed, "the copy before is still under way");
  reports_.add(agent_messages::Began{target.label, target.slot});
  client_.wake();
  if (auto begun = capture_.begin(std::move(target), addresses, stream); !begun) {
    return skip(step, SkipCause::kFailed, begun.error().message);
  }
  return CaptureResult::kBegun;
}

CaptureResult Checkpoint::skip(std::uint64_t step, SkipCause cause, const std::string& text) {
  report_skip({incarnation_.load(std::memory_order_relaxed), step}, cause, text);
  return CaptureResult::kSkipped;
}

// ---- any thread

void Checkpoint::report_skip(Label label, SkipCause cause, const std::string& text) {
  reports_.add(agent_messages::Skipped{label, cause, text});
  {
    const std::lock_guard lock(mutex_);
    ++status_.skips;
  }
  note_skip(label, "this rank", cause, text);
  client_.wake();
}

void Checkpoint::note_skip(Label label, const std::string& who, SkipCause cause, const std::string& text) {
  const char* why = "";
  switch (cause) {
    case SkipCause::kNoPromise:
      why = "no slot was free in time";
      break;
    case SkipCause::kCancelled:
      why = "the copy was not complete when the optimizer went on";
      break;
    case SkipCause::kLayout:
      why = "the state changed its layout, and there is no room for the new one yet";
      break;
    case SkipCause::kFailed:
      why = "the copy failed";
      break;
    case SkipCause::kDead:
      why = "another rank skipped it first";
      break;
    default:
      why = "no reason was given";
  }
  std::string line = "step " + std::to_string(label.step) + " by " + who + ": " + why;
  if (!text.empty()) line += " (" + text + ")";
  const std::lock_guard lock(mutex_);
  status_.last_skip = std::move(line);
}

void Checkpoint::ended(CaptureEnd end) {
  if (!end.is_complete) {
    report_skip(end.label, end.cause, end.text);
    return;
  }
  reports_.add(agent_messages::Copied{end.label, end.slot, end.copy_ns, end.blocked_ns});
  {
    const std::lock_guard lock(mutex_);
    ++status_.captures;
    status_.copied = end.label;
    status_.copied_bytes += end.bytes;
    status_.copy_ns += end.copy_ns;
    status_.blocked_ns += end.blocked_ns;
    status_.last_blocked_ns = end.blocked_ns;
  }
  client_.wake();
}

CheckpointStatus Checkpoint::status() {
  std::optional<agent_messages::Status> told;
  if (client_.is_connected()) {
    auto reply = client_.ask(agent_messages::StatusRequest{}, steady_clock::now() + std::chrono::milliseconds(250));
    if (reply) {
      if (auto* status = std::get_if<agent_messages::Status>(&reply->message)) told = std::move(*status);
    }
  }
  const auto welcome = client_.last_welcome();
  const std::lock_guard lock(mutex_);
  if (told) {
    status_.agreed = told->agreed;
    status_.durable = told->durable;
    status_.job_skips = told->skipped_steps;
  }
  CheckpointStatus status = status_;
  status.is_connected = client_.is_connected();
  status.gpu_wait_ns = capture_.gpu_wait_ns();
  status.error = status.is_connected ? room_refusal_ : client_.problem();
  if (told && status.error.empty()) status.error = told->disk_error;
  if (welcome) status.agent = "pid " + std::to_string(welcome->pid) + " in " + options_.client.folder;
  return status;
}

void Checkpoint::close_in_child() noexcept {
  client_.close_in_child();
  slots_.close_in_child();
}

}  // namespace smon_rt
