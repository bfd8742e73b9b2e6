#include "checkpoint/agent_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <memory>
#include <utility>

#include "checkpoint/agent_folder.h"
#include "checkpoint/agent_start.h"

namespace smon_rt {
namespace {

using agent_messages::Dead;
using agent_messages::Promise;
using agent_messages::Refused;
using agent_messages::Welcome;
using std::chrono::steady_clock;

Error no_answer(const char* what) {
  return Error{std::string("checkpoint agent: ") + what};
}

/// A reply that somebody waits for, or has ceased to.
struct Pending {
  std::mutex mutex;
  std::condition_variable arrived;
  std::optional<AgentClient::Reply> reply;
};

}  // namespace

AgentClient::AgentClient(AgentClientOptions options, Events& events)
    : options_([&] {
        options.hello.protocol = agent_messages::kProtocol;
        return std::move(options);
      }()),
      events_(events),
      wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

bool AgentClient::is_connected() const {
  const std::lock_guard lock(mutex_);
  return is_connected_;
}

std::string AgentClient::problem() const {
  const std::lock_guard lock(mutex_);
  return problem_;
}

std::optional<Welcome> AgentClient::last_welcome() const {
  const std::lock_guard lock(mutex_);
  return welcome_;
}

void AgentClient::post(Request request) {
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(request));
  }
  wake();
}

void AgentClient::wake() {
  // Without it the helper looks by itself, a little later.
  if (!wake_.is_ours()) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.fd(), &one, sizeof one);
}

AgentClient::Reply AgentClient::ask(agent_messages::TrainerMessage message, TimePoint deadline) {
  auto pending = std::make_shared<Pending>();
  post({std::move(message), {}, [pending](Reply reply) {
          const std::lock_guard lock(pending->mutex);
          pending->reply = std::move(reply);
          pending->arrived.notify_all();
        }});
  std::unique_lock lock(pending->mutex);
  if (!pending->arrived.wait_until(lock, deadline, [&] { return pending->reply.has_value(); })) {
    const std::string why = problem();
    return no_answer(why.empty() ? "it did not answer in time" : why.c_str());
  }
  if (!*pending->reply) return std::move(*pending->reply);
  if (const auto* refused = std::get_if<Refused>(&(*pending->reply)->message)) return Error{refused->reason};
  return std::move(*pending->reply);
}

Result<Welcome> AgentClient::wait_for_welcome(TimePoint deadline) {
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (is_connected_) return *welcome_;
      if (is_refused_ || steady_clock::now() >= deadline) return Error{problem_};
    }
    const timespec nap{0, 1'000'000};
    ::nanosleep(&nap, nullptr);
  }
}

void AgentClient::set_problem(std::string problem, bool is_connected) {
  const std::lock_guard lock(mutex_);
  problem_ = std::move(problem);
  is_connected_ = is_connected;
}

void AgentClient::pump(std::chrono::nanoseconds timeout) {
  if (!link_ && steady_clock::now() >= next_attempt_ && events_.may_connect()) connect();
  const bool is_full = link_ && !flush();
  std::array<pollfd, 2> events{};
  nfds_t count = 0;
  if (wake_.is_ours()) events[count++] = {wake_.fd(), POLLIN, 0};
  if (link_) events[count++] = {link_->fd(), static_cast<short>(is_full ? POLLIN | POLLOUT : POLLIN), 0};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{static_cast<time_t>(seconds.count()), static_cast<long>((timeout - seconds).count())};
  ::ppoll(events.data(), count, &limit, nullptr);
  std::uint64_t wakes = 0;
  if (wake_.is_ours()) [[maybe_unused]]
    const auto drained = ::read(wake_.fd(), &wakes, sizeof wakes);
  if (link_) receive_all();
  if (link_) flush();
}

Result<AgentLink> AgentClient::reach_agent() {
  if (auto made = AgentFolder::make(options_.folder); !made) return std::move(made).error();
  auto link = AgentLink::connect(options_.folder);
  if (link || options_.program.empty()) return link;
  const auto& hello = options_.hello;
  auto started = start_agent(options_.program, options_.folder, hello.run_id, hello.agent_ttl_s,
                             steady_clock::now() + options_.start_limit);
  if (!started) return std::move(started).error();
  return AgentLink::connect(options_.folder);
}

void AgentClient::connect() {
  next_attempt_ = steady_clock::now() + options_.retry_interval;
  auto link = reach_agent();
  if (!link) {
    set_problem(std::move(link).error().message, false);
    return;
  }
  link_ = std::move(*link);
  link_fd_.store(link_->fd(), std::memory_order_release);
  is_greeted_ = false;
  auto sent = link_->send(agent_messages::encode(agent_messages::TrainerMessage(options_.hello)), {});
  if (!sent || !*sent) lose(sent ? "checkpoint agent: its socket is full" : sent.error().message);
}

void AgentClient::lose(const std::string& why) {
  link_fd_.store(-1, std::memory_order_release);
  link_.reset();
  is_greeted_ = false;
  next_attempt_ = steady_clock::now() + options_.retry_interval;
  set_problem(why, false);
  auto awaited = std::exchange(awaited_, {});
  for (auto& each : awaited) each(Error{why});
  events_.lost(why);
}

bool AgentClient::flush() {
  while (link_ && is_greeted_) {
    std::unique_lock lock(mutex_);
    if (queue_.empty()) return true;
    Request request = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    auto sent = link_->send(agent_messages::encode(request.message), request.descriptors);
    if (sent && !*sent) {
      lock.lock();
      queue_.push_front(std::move(request));
      return false;
    }
    if (request.on_reply) awaited_.push_back(std::move(request.on_reply));
    if (!sent) lose(sent.error().message);
  }
  return true;
}

void AgentClient::receive_all() {
  while (link_) {
    auto packet = link_->receive();
    if (!packet) return lose(packet.error().message);
    if (!packet->has_value()) return;
    take(std::move(**packet));
  }
}

void AgentClient::take(AgentLink::Packet packet) {
  if (const auto* promise = std::get_if<Promise>(&packet.message)) return events_.promised(*promise);
  if (const auto* dead = std::get_if<Dead>(&packet.message)) return events_.dead(*dead);
  if (!is_greeted_) {
    if (const auto* refused = std::get_if<Refused>(&packet.message)) {
      {
        const std::lock_guard lock(mutex_);
        is_refused_ = true;
      }
      lose(refused->reason);
      next_attempt_ = steady_clock::now() + 20 * options_.retry_interval;
      return;
    }
    const auto* welcome = std::get_if<Welcome>(&packet.message);
    if (welcome == nullptr) return lose("checkpoint agent: it does not answer a hello with a welcome");
    std::vector<Request> first = events_.welcomed(*welcome);
    const std::lock_guard lock(mutex_);
    // What was told of an earlier connection means nothing in this one; what is asked still waits.
    std::erase_if(queue_, [](const Request& each) { return each.on_reply == nullptr; });
    for (auto each = first.rbegin(); each != first.rend(); ++each) queue_.push_front(std::move(*each));
    welcome_ = *welcome;
    problem_.clear();
    is_connected_ = true;
    is_refused_ = false;
    is_greeted_ = true;
    return;
  }
  if (awaited_.empty()) return lose("checkpoint agent: it answers what was not asked");
  auto on_reply = std::move(awaited_.front());
  awaited_.pop_front();
  on_reply(std::move(packet));
}

void AgentClient::shut(const std::string& why) {
  link_fd_.store(-1, std::memory_order_release);
  link_.reset();
  set_problem(why, false);
  auto awaited = std::exchange(awaited_, {});
  for (auto& each : awaited) each(Error{why});
  std::unique_lock lock(mutex_);
  auto queue = std::exchange(queue_, {});
  lock.unlock();
  for (auto& each : queue) {
    if (each.on_reply) each.on_reply(Error{why});
  }
}

void AgentClient::close_in_child() noexcept {
  const int fd = link_fd_.load(std::memory_order_acquire);
  if (fd >= 0) ::close(fd);
  if (wake_.is_open()) ::close(wake_.fd());
}

}  // namespace smon_rt
