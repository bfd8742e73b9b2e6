#include "agent/disk_tier.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace smon_rt {
namespace {

/// By write calls, not by memory: the slot is another process's, and the staged copy has no mapping to write through.
Result<void> copy_content(const SlotMemory& from, const SlotMemory& to) {
  auto bytes = from.content();
  std::size_t offset = kContentOffset;
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(to.fd(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return Error{"copy for the disk: " + std::generic_category().message(errno)};
    bytes = bytes.subspan(static_cast<std::size_t>(written));
    offset += static_cast<std::size_t>(written);
  }
  return {};
}

}  // namespace

/// What the thread uses; it outlives the tier where the disk hangs.
class DiskTier::Worker : public std::enable_shared_from_this<DiskTier::Worker> {
 public:
  Worker(DiskStore store, DiskTierOptions options, Post post)
      : store_(std::move(store)), options_(std::move(options)), post_(std::move(post)) {}

  void start() {
    // The program's signals are its main thread's.
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      std::thread([self = shared_from_this()] { self->run(); }).detach();
    } catch (const std::system_error& error) {
      const std::lock_guard lock(mutex_);
      has_ended_ = true;
      status_.error = std::string("checkpoints on disk: cannot start a thread: ") + error.what();
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void end() {
    std::unique_lock lock(mutex_);
    is_stopping_ = true;
    jobs_.clear();
    changed_.notify_all();
    changed_.wait_for(lock, options_.end_within, [this] { return has_ended_; });
  }

  void add(std::string what, std::function<void()> job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back({std::move(what), std::move(job)});
    }
    changed_.notify_all();
  }

  bool write(Label label, std::vector<DiskSource> sources, std::function<void()> on_staged,
             std::function<void(Result<void>)> on_written) {
    {
      const std::lock_guard lock(mutex_);
      if (is_writing_ || has_ended_) {
        ++status_.missed_steps;
        return false;
      }
      is_writing_ = true;
    }
    add("writing step " + std::to_string(label.step),
        [this, label, sources = std::move(sources), on_staged = std::move(on_staged),
         on_written = std::move(on_written)]() mutable {
          auto written = write_step(label, std::move(sources), std::move(on_staged));
          finish_write(label, written);
          tell([on_written = std::move(on_written), written = std::move(written)] { on_written(written); });
        });
    return true;
  }

  DiskTierStatus status(Clock::time_point now) const {
    const std::lock_guard lock(mutex_);
    DiskTierStatus status = status_;
    if (!running_.empty() && now - running_since_ >= options_.hang_after) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - running_since_).count();
      status.error = "checkpoints on disk: " + store_.folder() + " hangs: " + running_ + " has taken " +
                     std::to_string(seconds) + " s so far";
    }
    return status;
  }

  /// Under the lock, so that nothing is told once the owner is gone.
  void tell(std::function<void()> result) {
    const std::lock_guard lock(mutex_);
    if (!is_stopping_) post_(std::move(result));
  }

  const DiskStore& store() const { return store_; }

 private:
  struct Job {
    std::string what;
    std::function<void()> run;
  };

  void run() {
    ::pthread_setname_np(::pthread_self(), "smon-disk");
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return is_stopping_ || !jobs_.empty(); });
      if (is_stopping_) break;
      std::function<void()> job = std::move(jobs_.front().run);
      running_ = std::move(jobs_.front().what);
      running_since_ = Clock::now();
      jobs_.pop_front();
      lock.unlock();
      job();
      job = nullptr;
      lock.lock();
      running_.clear();
    }
    has_ended_ = true;
    changed_.notify_all();
  }

  Result<void> write_step(Label label, std::vector<DiskSource> sources, std::function<void()> on_staged) {
    auto staged = stage(sources);
    sources.clear();
    tell(std::move(on_staged));
    if (!staged) return staged.error();
    // What cannot be removed is said, and is no reason not to write.
    cleaned_ = store_.remove_incomplete(label);
    if (auto written = store_.write(label, *staged); !written) return written;
    if (auto removed = store_.remove_older(options_.keep); !removed) cleaned_ = removed;
    return {};
  }

  Result<std::vector<StagedShard>> stage(const std::vector<DiskSource>& sources) {
    std::map<std::string, std::shared_ptr<SlotMemory>> kept;
    std::uint64_t missing_bytes = 0;
    for (const DiskSource& source : sources) {
      const auto found = staging_.find(source.owner);
      const bool fits = found != staging_.end() && found->second->content_bytes() == source.memory->content_bytes();
      if (fits) kept.insert(*found);
      if (!fits) missing_bytes += source.memory->file_bytes();
    }
    // Before the rest is taken: what is left of another layout makes room for it.
    staging_ = std::move(kept);
    if (missing_bytes > 0) {
      if (auto checked = options_.check_budget(missing_bytes); !checked) return checked.error();
    }
    std::vector<StagedShard> shards;
    std::uint64_t bytes = 0;
    for (const DiskSource& source : sources) {
      std::shared_ptr<SlotMemory>& memory = staging_[source.owner];
      if (memory == nullptr) {
        auto made = SlotMemory::make(source.memory->content_bytes());
        if (!made) {
          staging_.erase(source.owner);
          return made.error();
        }
        memory = std::move(*made);
      }
      if (auto copied = copy_content(*source.memory, *memory); !copied) return copied.error();
      shards.push_back({source.owner, source.topology, memory->content(), source.content_hash});
      bytes += memory->file_bytes();
    }
    const std::lock_guard lock(mutex_);
    status_.staged_bytes = bytes;
    pending_bytes_ = 0;
    for (const StagedShard& shard : shards) pending_bytes_ += shard.content.size();
    return shards;
  }

  void finish_write(Label label, const Result<void>& written) {
    const std::lock_guard lock(mutex_);
    is_writing_ = false;
    const Result<void>& failed = written ? cleaned_ : written;
    status_.error = failed ? "" : failed.error().message;
    if (!written) return;
    status_.durable = label;
    status_.written_bytes += pending_bytes_;
    status_.write_ns += static_cast<std::uint64_t>(std::chrono::nanoseconds(Clock::now() - running_since_).count());
  }

  const DiskStore store_;
  const DiskTierOptions options_;
  const Post post_;
  std::map<std::string, std::shared_ptr<SlotMemory>> staging_;  // the thread's; kept, as fresh memory is slow

  Result<void> cleaned_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  std::string running_;
  Clock::time_point running_since_;
  DiskTierStatus status_;
  std::uint64_t pending_bytes_ = 0;
  bool is_writing_ = false;
  bool is_stopping_ = false;
  bool has_ended_ = false;
};

DiskTier::DiskTier(DiskStore store, DiskTierOptions options, Post post)
    : worker_(std::make_shared<Worker>(std::move(store), std::move(options), std::move(post))) {
  worker_->start();
}

DiskTier::~DiskTier() {
  worker_->end();
}

bool DiskTier::write(Label label, std::vector<DiskSource> sources, std::function<void()> on_staged,
                     std::function<void(Result<void>)> on_written) {
  return worker_->write(label, std::move(sources), std::move(on_staged), std::move(on_written));
}

void DiskTier::list(std::function<void(Result<DiskListing>)> on_listed) {
  worker_->add("listing", [worker = worker_.get(), on_listed = std::move(on_listed)]() mutable {
    auto listing = worker->store().list();
    worker->tell([on_listed = std::move(on_listed), listing = std::move(listing)] { on_listed(listing); });
  });
}

void DiskTier::load(std::string owner, Label label,
                    std::function<void(Result<std::shared_ptr<SlotMemory>>)> on_loaded) {
  worker_->add("loading step " + std::to_string(label.step),
               [worker = worker_.get(), owner = std::move(owner), label, on_loaded = std::move(on_loaded)]() mutable {
                 auto loaded = worker->store().load(owner, label);
                 worker->tell([on_loaded = std::move(on_loaded), loaded = std::move(loaded)] { on_loaded(loaded); });
               });
}

void DiskTier::verify(DiskManifest manifest, DiskShard shard, std::function<void(Result<void>)> on_verified) {
  worker_->add(
      "verifying step " + std::to_string(manifest.label.step),
      [worker = worker_.get(), manifest = std::move(manifest), shard = std::move(shard),
       on_verified = std::move(on_verified)]() mutable {
        auto verified = worker->store().verify(manifest, shard);
        worker->tell([on_verified = std::move(on_verified), verified = std::move(verified)] { on_verified(verified); });
      });
}

DiskTierStatus DiskTier::status(Clock::time_point now) const {
  return worker_->status(now);
}

}  // namespace smon_rt
