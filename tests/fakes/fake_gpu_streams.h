#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

namespace smon_rt {

/// Streams of a GPU that do nothing until they are told to, and then one thing after the other: work, events, waits for
/// events, as CUDA's streams do.
///
/// Threading: any thread; work runs on the one that tells a stream to, one piece at a time, and must not call back.
class FakeGpuStreams {
 public:
  using Stream = std::uint64_t;
  /// One recording of an event. A wait is for the recording that was there when the stream was told to wait.
  struct Moment {
    bool has_come = false;
    std::int64_t time_ns = 0;
  };
  using Event = std::shared_ptr<Moment>;  // null: never recorded, and waited for by nobody

  void launch(Stream stream, std::function<void()> work);
  Event record(Stream stream);
  void wait(Stream stream, const Event& event);

  /// The stream stands still there until it is let go.
  void hold(Stream stream);
  void let_go(Stream stream);

  /// The next thing of a stream; false if there is none, or it waits.
  bool step(Stream stream);
  /// All that can be done, in all streams or in one.
  void run();
  void run(Stream stream);
  bool is_idle(Stream stream) const;
  bool is_idle() const;
  /// From here on everything is done as soon as it can be.
  void set_automatic(bool is_automatic);

  bool has_come(const Event& event) const;
  /// Of one that has come.
  std::int64_t time_ns(const Event& event) const;
  /// The GPU's clock, which stands still otherwise.
  void pass_time(std::int64_t duration_ns);
  void reset();

 private:
  struct Item {
    std::function<void()> work;  // or
    Event recorded;              // or
    Event awaited;
  };
  void add(Stream stream, Item item);
  bool step_locked(std::deque<Item>& items);
  void run_locked();

  mutable std::mutex mutex_;
  std::map<Stream, std::deque<Item>> streams_;
  std::map<Stream, Event> holds_;
  std::int64_t now_ns_ = 1;
  bool is_automatic_ = false;
};

}  // namespace smon_rt
