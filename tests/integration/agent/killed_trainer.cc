#include "killed_trainer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#include "api/smon_rt.h"

namespace smon_rt {

namespace {

constexpr std::size_t kHeaderBytes = 4096;
constexpr std::size_t kStableWords = 40000;
constexpr std::size_t kVolatileWords = 37;
constexpr std::uint64_t kSteps = 60;  // of an attempt that nobody kills

class Trainer {
 public:
  Trainer(KilledJob::Store& store, const KilledTrainer& what)
      : store_(store), what_(what), stable_(kStableWords), volatile_(kVolatileWords) {}

  void run() {
    open();
    const std::uint64_t first = recover();
    set_layout();
    store_.has_gone_on = true;
    for (std::uint64_t step = first; step < first + kSteps; ++step) {
      wait_for_others(step);
      smon_checkpoint_before_update(checkpoint_, 0);
      // An iteration's work: without it no promise comes in time, and all is skipped.
      std::this_thread::sleep_for(std::chrono::microseconds(500));
      set_state(step);
      store_.at[what_.rank] = step;
      capture(step);
      publish_agreed();
    }
    smon_checkpoint_before_update(checkpoint_, 0);
    barrier("the end");
    smon_checkpoint_close(checkpoint_, 1);
  }

 private:
  [[noreturn]] void fail(const std::string& why) {
    fail_job(store_, "rank " + std::to_string(what_.rank) + ", attempt " + std::to_string(what_.attempt) + ": " + why);
    ::_exit(1);
  }

  void expect(smon_result result, const char* what) {
    if (result != SMON_OK && store_.is_killing) {
      // Another rank is dead already: the agent refuses to go on without it.
      ::_exit(1);
    }
    if (result != SMON_OK) {
      fail(std::string(what) + ": " + smon_last_error());
    }
  }

  static std::uint64_t word(std::size_t rank, std::uint64_t step, std::size_t index) {
    return (step * 0x9e3779b97f4a7c15U) ^ (rank << 56) ^ index;
  }

  void set_state(std::uint64_t step) {
    for (std::size_t index = 0; index < kStableWords; ++index) {
      stable_[index] = word(what_.rank, step, index);
    }
    for (std::size_t index = 0; index < kVolatileWords; ++index) {
      volatile_[index] = word(what_.rank, step, kStableWords + index);
    }
  }

  void open() {
    smon_checkpoint_config config;
    smon_checkpoint_config_init(&config);
    const std::string attempt = std::to_string(what_.attempt);
    config.run_id = "killed";
    config.rank = static_cast<std::int32_t>(what_.rank);
    config.world_size = KilledJob::kRanks;
    config.topology = "world 3";
    config.attempt = attempt.c_str();
    config.agent_dir = what_.folder.c_str();
    config.agent_program = SMON_TEST_AGENT_PROGRAM;
    config.agent_ttl_s = 60;
    std::uint32_t incarnation = 0;
    expect(smon_checkpoint_open(&config, &checkpoint_, &incarnation), "open");
    std::uint32_t newest = store_.incarnation;
    while (incarnation > newest && !store_.incarnation.compare_exchange_weak(newest, incarnation)) {
    }
    barrier("open");
    incarnation_ = store_.incarnation + 1;
  }

  // As every trainer does: fence, list, choose, pin, fetch, go on. The next step.
  std::uint64_t recover() {
    expect(smon_checkpoint_fence(checkpoint_, incarnation_), "fence");
    barrier("fence");
    list();
    barrier("list");
    const std::vector<smon_label> complete = complete_steps();
    const smon_label choice = complete.empty() ? smon_label{0, 0} : complete.front();
    check_choice(choice);
    expect(smon_checkpoint_pin(checkpoint_, choice, complete.data(), complete.size()), "pin");
    barrier("pin");
    if (!complete.empty()) {
      fetch(choice);
    }
    barrier("fetch");
    expect(smon_checkpoint_go_on(checkpoint_, incarnation_, choice.step + 1), "go on");
    if (what_.rank == 0) {
      store_.restored_incarnation = choice.incarnation;
      store_.restored_step = choice.step;
      ++store_.restores;
    }
    return choice.step + 1;
  }

  void list() {
    smon_checkpoint_copy copies[8];
    std::size_t count = 0;
    expect(smon_checkpoint_list(checkpoint_, copies, 8, &count), "list");
    std::uint32_t usable = 0;
    for (std::size_t index = 0; index < std::min<std::size_t>(count, 8); ++index) {
      if (copies[index].is_intact != 0 && copies[index].is_tried == 0) {
        store_.list_incarnations[what_.rank][usable] = copies[index].label.incarnation;
        store_.list_steps[what_.rank][usable] = copies[index].label.step;
        ++usable;
      } else {
        fail(std::string("a copy is not intact: ") + copies[index].reason);
      }
    }
    store_.list_sizes[what_.rank] = usable;
  }

  bool has(std::size_t rank, smon_label label) const {
    for (std::uint32_t index = 0; index < store_.list_sizes[rank]; ++index) {
      if (store_.list_incarnations[rank][index] == label.incarnation && store_.list_steps[rank][index] == label.step) {
        return true;
      }
    }
    return false;
  }

  // Newest first.
  std::vector<smon_label> complete_steps() const {
    std::vector<smon_label> complete;
    for (std::uint32_t index = 0; index < store_.list_sizes[0]; ++index) {
      const smon_label label{store_.list_incarnations[0][index], store_.list_steps[0][index]};
      bool is_complete = true;
      for (std::size_t rank = 1; rank < KilledJob::kRanks; ++rank) {
        is_complete = is_complete && has(rank, label);
      }
      if (is_complete) {
        complete.push_back(label);
      }
    }
    std::sort(complete.begin(), complete.end(), is_newer);
    return complete;
  }

  static bool is_newer(const smon_label& one, const smon_label& other) {
    return one.incarnation != other.incarnation ? one.incarnation > other.incarnation : one.step > other.step;
  }

  void check_choice(smon_label choice) {
    const smon_label agreed{store_.agreed_incarnation, store_.agreed_step};
    if (is_newer(agreed, choice)) {
      fail("step " + std::to_string(agreed.step) + " of incarnation " + std::to_string(agreed.incarnation) +
           " was agreed, the newest that is there is step " + std::to_string(choice.step) + " of " +
           std::to_string(choice.incarnation));
    }
  }

  void fetch(smon_label choice) {
    const void* content = nullptr;
    std::size_t bytes = 0;
    expect(smon_checkpoint_fetch(checkpoint_, choice, 1, &content, &bytes), "fetch");
    set_state(choice.step);
    const auto* const data = static_cast<const char*>(content) + kHeaderBytes;
    const std::size_t stable_bytes = stable_.size() * sizeof(std::uint64_t);
    const std::size_t volatile_bytes = volatile_.size() * sizeof(std::uint64_t);
    if (bytes != kHeaderBytes + stable_bytes + volatile_bytes || std::memcmp(data, stable_.data(), stable_bytes) != 0 ||
        std::memcmp(data + stable_bytes, volatile_.data(), volatile_bytes) != 0) {
      fail("what is restored is not step " + std::to_string(choice.step) + " bit for bit");
    }
    smon_checkpoint_release(checkpoint_);
  }

  void set_layout() {
    std::string header(kHeaderBytes, ' ');
    const std::uint64_t json_bytes = kHeaderBytes - sizeof(std::uint64_t);
    std::memcpy(header.data(), &json_bytes, sizeof json_bytes);
    const std::uint64_t stable_bytes = kStableWords * 8;
    const std::uint64_t volatile_bytes = kVolatileWords * 8;
    const std::string json = R"({"stable":{"dtype":"I64","shape":[)" + std::to_string(kStableWords) +
                             R"(],"data_offsets":[0,)" + std::to_string(stable_bytes) +
                             R"(]},"volatile":{"dtype":"I64","shape":[)" + std::to_string(kVolatileWords) +
                             R"(],"data_offsets":[)" + std::to_string(stable_bytes) + "," +
                             std::to_string(stable_bytes + volatile_bytes) + "]}}";
    std::memcpy(header.data() + sizeof json_bytes, json.data(), json.size());
    const smon_tensor_range ranges[2] = {
        {kHeaderBytes, stable_bytes, reinterpret_cast<std::uint64_t>(stable_.data()), -1, 0},
        {kHeaderBytes + stable_bytes, volatile_bytes, reinterpret_cast<std::uint64_t>(volatile_.data()), -1, 1}};
    expect(smon_checkpoint_set_layout(checkpoint_, header.data(), header.size(), ranges, 2), "set_layout");
  }

  void capture(std::uint64_t step) {
    if (smon_checkpoint_capture(checkpoint_, step, nullptr, 0) == SMON_CAPTURE_BEGUN) {
      ++store_.captures;
    } else {
      ++store_.skips;
    }
    // What is volatile changes as soon as the capture has returned.
    std::fill(volatile_.begin(), volatile_.end(), 0);
  }

  void publish_agreed() {
    if (what_.rank != 0) {
      return;
    }
    smon_checkpoint_status status;
    status.struct_size = sizeof status;
    smon_checkpoint_status_read(checkpoint_, &status);
    const smon_label before{store_.agreed_incarnation, store_.agreed_step};
    if (status.has_agreed != 0 && is_newer(status.agreed, before)) {
      // Killed between the two, it says less than what is so.
      store_.agreed_step = status.agreed.incarnation == before.incarnation ? status.agreed.step : 0;
      store_.agreed_incarnation = status.agreed.incarnation;
      store_.agreed_step = status.agreed.step;
    }
  }

  // Collectives: nobody begins an iteration before all have ended the one before.
  void wait_for_others(std::uint64_t step) {
    for (std::size_t rank = 0; rank < KilledJob::kRanks; ++rank) {
      wait_until([&] { return store_.at[rank] + 1 >= step || store_.at[rank] == 0; }, "a step");
    }
  }

  void barrier(const char* what) {
    std::atomic<std::uint32_t>& arrivals = store_.arrivals[barriers_++];
    ++arrivals;
    wait_until([&] { return arrivals == KilledJob::kRanks; }, what);
  }

  template <typename Condition>
  void wait_until(Condition condition, const char* what) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!condition()) {
      if (store_.has_failed) {
        ::_exit(1);
      }
      if (std::chrono::steady_clock::now() > deadline) {
        fail(std::string("the others did not come to ") + what);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  KilledJob::Store& store_;
  KilledTrainer what_;
  std::vector<std::uint64_t> stable_;
  std::vector<std::uint64_t> volatile_;
  smon_checkpoint* checkpoint_ = nullptr;
  std::uint32_t incarnation_ = 0;
  std::size_t barriers_ = 0;
};

}  // namespace

void run_killed_trainer(KilledJob::Store& store, const KilledTrainer& trainer) {
  Trainer(store, trainer).run();
  ::_exit(0);
}

void fail_job(KilledJob::Store& store, const std::string& why) {
  bool expected = false;
  if (store.has_failed.compare_exchange_strong(expected, true)) {
    std::strncpy(store.failure, why.c_str(), sizeof store.failure - 1);
  }
}

}  // namespace smon_rt
