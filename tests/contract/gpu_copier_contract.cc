#include "contract/gpu_copier_contract.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace smon_rt::contract {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kStagingBytes = 4096;
constexpr std::size_t kVolatileBytes = 1000;
constexpr std::byte kUntouched{0xee};
constexpr std::byte kOld{1};
constexpr std::byte kNew{2};
constexpr std::int64_t kShort_ns = 10'000'000;
constexpr std::int64_t kLong_ns = 10'000'000'000;

/// A job on two streams: weights that its optimizer writes, memory that others write, and a slot for both.
class Job {
 public:
  Job(GpuCopierFixture& fixture, Findings& findings)
      : fixture_(fixture), findings_(findings), weights_bytes_(3 * fixture.chunk_bytes() + 5) {
    fixture.enter_context();
    const auto opened = fixture.copier().open(kStagingBytes);
    is_open_ = findings.expect(opened.has_value(), "a copier cannot be opened: " + message(opened));
    weights_ = fixture.allocate(weights_bytes_);
    volatile_ = fixture.allocate(kVolatileBytes);
    memory_.assign(kPageBytes + weights_bytes_ + kVolatileBytes, kUntouched);
    // As a slot is: pieces of it that are page-locked share no page.
    const std::size_t into_page = reinterpret_cast<std::uintptr_t>(memory_.data()) % kPageBytes;
    slot_ = std::span(memory_).subspan(kPageBytes - into_page, weights_bytes_ + kVolatileBytes);
    // Else enqueue() might wait for a stream that is held.
    is_open_ = is_open_ &&
               findings.expect(fixture.copier().register_host(slot_).has_value(), "host memory cannot be page-locked");
    fill(producer(), kOld);
    fixture.synchronize();
  }
  ~Job() { fixture_.copier().unregister_host(slot_); }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  template <typename T>
  static std::string message(const Result<T>& result) {
    return result ? "" : result.error().message;
  }

  explicit operator bool() const { return is_open_; }
  std::uint64_t producer() const { return fixture_.stream(0); }
  std::uint64_t other() const { return fixture_.stream(1); }
  GpuCopier& copier() { return fixture_.copier(); }
  std::size_t weights_bytes() const { return weights_bytes_; }
  std::uint64_t weights() const { return weights_; }
  std::span<std::byte> slot() const { return slot_; }

  void fill(std::uint64_t stream, std::byte value) {
    fill_weights(stream, value);
    fill_volatile(stream, value);
  }
  void fill_weights(std::uint64_t stream, std::byte value) { fixture_.fill(stream, weights_, weights_bytes_, value); }
  void fill_volatile(std::uint64_t stream, std::byte value) { fixture_.fill(stream, volatile_, kVolatileBytes, value); }

  std::vector<GpuCopyRange> stable_ranges() { return {{weights_, slot_.data(), weights_bytes_}}; }
  std::vector<GpuCopyRange> volatile_ranges() { return {{volatile_, slot_.data() + weights_bytes_, kVolatileBytes}}; }
  bool begin(std::uint64_t stream) {
    const auto begun = copier().begin(stream, volatile_ranges());
    return findings_.expect(begun.has_value(), "a capture cannot begin: " + message(begun));
  }
  bool enqueue() {
    const auto enqueued = copier().enqueue(stable_ranges());
    return findings_.expect(enqueued.has_value(), "copies cannot be enqueued: " + message(enqueued));
  }
  bool gate(std::uint64_t stream) {
    const auto gated = copier().gate(stream);
    return findings_.expect(gated.has_value(), "a stream cannot be told to wait: " + message(gated));
  }
  bool is_copied() {
    const auto copied = copier().is_copied();
    return copied && *copied;
  }
  bool slot_holds(std::byte value) const {
    return std::ranges::all_of(slot_, [value](std::byte one) { return one == value; });
  }

 private:
  GpuCopierFixture& fixture_;
  Findings& findings_;
  bool is_open_ = false;
  std::size_t weights_bytes_;
  std::uint64_t weights_ = 0;
  std::uint64_t volatile_ = 0;
  std::vector<std::byte> memory_;
  std::span<std::byte> slot_;
};

void nothing_can_be_done_before_it_is_open(GpuCopierFixture& fixture, Findings& findings) {
  GpuCopier& copier = fixture.copier();
  findings.expect(!copier.begin(fixture.stream(0), {}), "a capture begins in a copier that is not open");
  findings.expect(!copier.enqueue({}), "copies are enqueued without a capture");
  findings.expect(!copier.gate(fixture.stream(0)), "a stream waits for no capture");
  const auto copied = copier.is_copied();
  findings.expect(!copied || !*copied, "no capture is copied");
  findings.expect(copier.gpu_wait_ns() == 0, "a stream waited without a gate");
  findings.expect(copier.cancel(0), "no capture cannot be cancelled");
}

void it_opens_in_a_context_alone(GpuCopierFixture& fixture, Findings& findings) {
  fixture.leave_context();
  findings.expect(!fixture.copier().open(kStagingBytes), "a copier opens without a context");
}

void what_is_copied_is_what_was_there_at_the_begin(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job || !job.begin(job.producer())) return;
  job.fill_volatile(job.producer(), kNew);  // at once, since it is staged
  if (!job.enqueue() || !job.gate(job.producer())) return;
  job.fill_weights(job.producer(), kNew);
  fixture.synchronize();
  findings.expect(job.is_copied(), "copies are not done once all is");
  findings.expect(job.slot_holds(kOld), "the slot holds other bytes than were there when the capture began");
}

void nothing_is_copied_before_its_producer_is_through(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  fixture.hold(job.producer());
  job.fill(job.producer(), kNew);
  const bool has_enqueued = job.begin(job.producer()) && job.enqueue();
  fixture.run();
  findings.expect(!has_enqueued || !job.is_copied(), "copies are done before what they are of");
  fixture.let_go(job.producer());
  fixture.synchronize();
  if (!has_enqueued) return;
  findings.expect(job.is_copied(), "copies are not done once all is");
  findings.expect(job.slot_holds(kNew), "the slot holds bytes of before the producer's work");
}

void a_stream_that_is_gated_waits_for_the_copies(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  fixture.hold(job.producer());
  const bool has_gated = job.begin(job.producer()) && job.enqueue() && job.gate(job.other());
  if (has_gated) job.fill_weights(job.other(), kNew);  // not held itself
  fixture.run();
  findings.expect(job.copier().gpu_wait_ns() == 0, "a wait that goes on has a length");
  fixture.let_go(job.producer());
  fixture.synchronize();
  if (!has_gated) return;
  findings.expect(job.slot_holds(kOld), "the snapshot is torn: a gated stream did not wait for its copies");
  findings.expect(job.copier().gpu_wait_ns() > 0, "a stream waited, and nobody says how long");
}

void a_gate_needs_enqueued_copies(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job || !job.begin(job.producer())) return;
  findings.expect(!job.copier().gate(job.producer()), "a stream waits for copies that are not enqueued");
  findings.expect(job.copier().cancel(0), "a capture without copies cannot be cancelled at once");
}

void streams_that_are_captured_are_left_alone(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  fixture.begin_capture(job.producer());
  findings.expect(!job.copier().begin(job.producer(), job.volatile_ranges()), "a capture begins inside a graph");
  fixture.end_capture(job.producer());
  if (!job.begin(job.producer()) || !job.enqueue()) return;
  fixture.begin_capture(job.other());
  findings.expect(!job.copier().gate(job.other()), "a gate inside a graph");
  // The helper thread asks while the job captures.
  bool has_answer = false;
  std::thread([&] { has_answer = job.copier().is_copied().has_value(); }).join();
  findings.expect(has_answer, "nobody says whether copies are done while a graph is captured");
  fixture.end_capture(job.other());
  fixture.synchronize();
  findings.expect(job.is_copied() && job.slot_holds(kOld), "copies beside a capture are not done, or wrong");
}

void a_cancelled_capture_writes_no_more(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  fixture.hold(job.producer());
  const bool has_enqueued = job.begin(job.producer()) && job.enqueue();
  if (has_enqueued) {
    fixture.run();
    findings.expect(!job.copier().cancel(monotonic_ns() + kShort_ns), "copies that wait are said to be through");
    findings.expect(!job.copier().gate(job.other()), "a stream waits for a capture that was given up");
    findings.expect(!job.copier().begin(job.producer(), {}), "a capture begins while the last one's copies may run");
  }
  fixture.let_go(job.producer());
  fixture.synchronize();
  if (!has_enqueued) return;
  if (!findings.expect(job.copier().cancel(monotonic_ns() + kLong_ns), "copies are not through once all is")) return;
  std::ranges::fill(job.slot(), kUntouched);
  job.fill(job.producer(), kNew);
  fixture.synchronize();
  findings.expect(job.slot_holds(kUntouched), "a cancelled capture wrote into its slot");
  if (!job.begin(job.producer()) || !job.enqueue()) return;
  fixture.synchronize();
  findings.expect(job.is_copied() && job.slot_holds(kNew), "no capture after a cancelled one");
}

void nothing_is_enqueued_after_a_cancel(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job || !job.begin(job.producer())) return;
  findings.expect(job.copier().cancel(0), "a capture without copies cannot be cancelled at once");
  findings.expect(!job.copier().enqueue(job.stable_ranges()), "copies of a cancelled capture are enqueued");
  fixture.synchronize();
  findings.expect(job.slot_holds(kUntouched), "copies of a cancelled capture are done");
}

void what_was_staged_last_does_not_reach_the_next_capture(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  fixture.hold(job.producer());
  bool has_enqueued = false;
  if (job.begin(job.producer())) {
    job.fill_volatile(job.producer(), kNew);
    job.copier().cancel(0);
    // It may be refused.
    has_enqueued = job.copier().begin(job.other(), job.volatile_ranges()).has_value() && job.enqueue();
  }
  fixture.run();
  fixture.let_go(job.producer());
  fixture.synchronize();
  findings.expect(!has_enqueued || job.slot_holds(kOld), "a capture has what a cancelled one staged");
}

void one_capture_at_a_time(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job || !job.begin(job.producer())) return;
  findings.expect(!job.copier().begin(job.other(), {}), "two captures at once");
  if (!job.enqueue()) return;
  fixture.synchronize();
  if (!job.begin(job.other()) || !job.enqueue()) return;
  fixture.synchronize();
  findings.expect(job.is_copied() && job.slot_holds(kOld), "the second capture is not done, or wrong");
}

void more_than_can_be_staged_is_refused(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  const GpuCopyRange range{job.weights(), job.slot().data(), kVolatileBytes};
  const std::vector<GpuCopyRange> ranges(kStagingBytes / kVolatileBytes + 1, range);
  findings.expect(!job.copier().begin(job.producer(), ranges), "more is staged than there is room for");
  if (job.begin(job.producer())) job.copier().cancel(0);
}

void as_much_can_be_staged_as_was_asked_for(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  std::vector<std::byte> content(kStagingBytes);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i % 241);
  const std::uint64_t source = fixture.allocate(kStagingBytes);
  fixture.write(source, content);
  std::vector<std::byte> host(kStagingBytes, kUntouched);
  std::vector<GpuCopyRange> ranges;  // many small ones, which a copier may want to align
  for (std::size_t at = 0; at < kStagingBytes; at += 4) ranges.push_back({source + at, host.data() + at, 4});
  const auto begun = job.copier().begin(job.producer(), ranges);
  if (!findings.expect(begun.has_value(), "what fits is not staged: " + Job::message(begun))) return;
  if (!findings.expect(job.copier().enqueue({}).has_value(), "copies cannot be enqueued")) return;
  fixture.synchronize();
  findings.expect(host == content, "small staged ranges are not what they were");
}

void ranges_of_any_size_are_copied_whole(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  std::vector<std::byte> content(job.weights_bytes());
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>((i * 131 + i / 251) % 241);
  fixture.write(job.weights(), content);
  std::vector<GpuCopyRange> ranges;
  std::size_t offset = 0;
  const std::size_t chunk = fixture.chunk_bytes();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{0}, std::size_t{3}, chunk, chunk + 1}) {
    ranges.push_back({job.weights() + offset, job.slot().data() + offset, bytes});
    offset += bytes;
  }
  if (!findings.expect(job.copier().begin(job.producer(), {}).has_value(), "no capture without volatile ranges"))
    return;
  if (!findings.expect(job.copier().enqueue(ranges).has_value(), "copies cannot be enqueued")) return;
  fixture.synchronize();
  findings.expect(std::memcmp(job.slot().data(), content.data(), offset) == 0, "a range was not copied whole");
  const bool is_rest_untouched = std::all_of(job.slot().begin() + static_cast<std::ptrdiff_t>(offset), job.slot().end(),
                                             [](std::byte one) { return one == kUntouched; });
  findings.expect(is_rest_untouched, "a copy wrote behind its range");
}

void host_memory_need_not_be_page_locked(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  job.copier().unregister_host(job.slot());
  if (!job.begin(job.producer()) || !job.enqueue()) return;
  fixture.synchronize();
  findings.expect(job.is_copied() && job.slot_holds(kOld), "no copy into memory that is not page-locked");
  findings.expect(job.copier().register_host(job.slot()).has_value(), "memory cannot be page-locked again");
}

void no_snapshot_is_torn(GpuCopierFixture& fixture, Findings& findings) {
  Job job(fixture, findings);
  if (!job) return;
  for (int step = 1; step <= 20; ++step) {
    const auto value = static_cast<std::byte>(step);
    job.fill(job.producer(), value);
    if (!job.begin(job.producer())) return;
    job.fill_volatile(job.producer(), std::byte{0xff});  // the next forward's
    bool has_enqueued = false;
    std::thread([&] { has_enqueued = job.copier().enqueue(job.stable_ranges()).has_value(); }).join();
    if (!findings.expect(has_enqueued, "copies cannot be enqueued by another thread")) return;
    if (!job.gate(job.producer())) return;
    job.fill_weights(job.producer(), std::byte{0xff});  // the optimizer's
    fixture.synchronize();
    if (!findings.expect(job.slot_holds(value), "the snapshot of step " + std::to_string(step) + " is torn")) return;
  }
}

constexpr GpuCopierCheck kChecks[] = {
    {"NothingCanBeDoneBeforeItIsOpen", false, nothing_can_be_done_before_it_is_open},
    {"ItOpensInAContextAlone", false, it_opens_in_a_context_alone},
    {"WhatIsCopiedIsWhatWasThereAtTheBegin", true, what_is_copied_is_what_was_there_at_the_begin},
    {"NothingIsCopiedBeforeItsProducerIsThrough", true, nothing_is_copied_before_its_producer_is_through},
    {"AStreamThatIsGatedWaitsForTheCopies", true, a_stream_that_is_gated_waits_for_the_copies},
    {"AGateNeedsEnqueuedCopies", true, a_gate_needs_enqueued_copies},
    {"StreamsThatAreCapturedAreLeftAlone", true, streams_that_are_captured_are_left_alone},
    {"ACancelledCaptureWritesNoMore", true, a_cancelled_capture_writes_no_more},
    {"NothingIsEnqueuedAfterACancel", true, nothing_is_enqueued_after_a_cancel},
    {"WhatWasStagedLastDoesNotReachTheNextCapture", true, what_was_staged_last_does_not_reach_the_next_capture},
    {"OneCaptureAtATime", true, one_capture_at_a_time},
    {"MoreThanCanBeStagedIsRefused", true, more_than_can_be_staged_is_refused},
    {"AsMuchCanBeStagedAsWasAskedFor", true, as_much_can_be_staged_as_was_asked_for},
    {"RangesOfAnySizeAreCopiedWhole", true, ranges_of_any_size_are_copied_whole},
    {"HostMemoryNeedNotBePageLocked", true, host_memory_need_not_be_page_locked},
    {"NoSnapshotIsTorn", true, no_snapshot_is_torn},
};

}  // namespace

std::span<const GpuCopierCheck> gpu_copier_contract() {
  return kChecks;
}

}  // namespace smon_rt::contract
